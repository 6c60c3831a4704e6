"""Which kernels multiply the rows of experts, by how many they have and how long they are."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rocmforge_hip.device.constants import NOT_GATED
from rocmforge_hip.device.memory import DeviceArray, spec
from rocmforge_hip.ops.activations import SortedPairs
from rocmforge_hip.ops.experts.grouped_products import GroupedProducts
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.weights.formats import FORMATS, Matrix
from tests.support.fakes.recording_library import RecordingLibrary

_ARRAY = DeviceArray(0, (1,), spec((), "f4").dtype)
_EXPERTS, _CHOSEN, _SILU = 16, 2, 1


def _launched(
    tokens: int, features: int, gate: int, *, has_warpgroups: bool = True
) -> list[tuple[str, int]]:
    """Names of kernels that sort and multiply, and how many blocks they have side by side."""
    library = RecordingLibrary(lambda name: has_warpgroups)
    geometry = Geometry(10, has_warpgroups=has_warpgroups)
    products = GroupedProducts(
        cast(Any, library),
        geometry,
        frozenset({"q4_k"}),
        SortedPairs(rows=_ARRAY, places=_ARRAY, tiles=_ARRAY),
    )
    matrix = Matrix(_ARRAY, FORMATS["q4_k"], 512, features, 512, _EXPERTS)
    pairs = tokens * _CHOSEN
    tile = products.sort(_ARRAY, pairs, _CHOSEN, matrix, gate)
    products.multiply(pairs, matrix, tile, _ARRAY, gate=gate, out=_ARRAY, out_half=_ARRAY)
    return library.blocks


@pytest.mark.parametrize(
    ("tokens", "features", "gate", "kernel", "blocks"),
    [
        (96, 2048, _SILU, "rf_experts_gated_gemm_q4_k", 192 // 48 + 16 + 20),
        (320, 2048, _SILU, "rf_experts_gated_gemm_q4_k", 640 // 48 + 16 + 20),
        (95, 2048, _SILU, "rf_gemm_q4_k_m64", 190 // 64 + 16),
        (321, 2048, _SILU, "rf_gemm_q4_k_m64", 642 // 64 + 16),
        (96, 2304, _SILU, "rf_gemm_q4_k_m64", 192 // 64 + 16),
        (96, 1280, NOT_GATED, "rf_experts_gemm_q4_k", 192 // 64 + 16 + 20),
        (96, 1536, NOT_GATED, "rf_gemm_q4_k_m64", 192 // 64 + 16),
    ],
    ids=["few", "many", "fewer", "more", "long", "short_of_down", "long_of_down"],
)
def test_rows_that_have_room_in_lds_stay_there(
    tokens: int, features: int, gate: int, kernel: str, blocks: int
) -> None:
    assert _launched(tokens, features, gate) == [("rf_group_experts", 16), (kernel, blocks)]


def test_tiles_of_rows_that_stay_in_lds_are_taken_by_other_kernels_too() -> None:
    library = RecordingLibrary(lambda name: True)
    products = GroupedProducts(
        *(cast(Any, library), Geometry(10), frozenset({"q4_k"})),
        SortedPairs(rows=_ARRAY, places=_ARRAY, tiles=_ARRAY),
    )
    down = Matrix(_ARRAY, FORMATS["q4_k"], 512, 1536, 512, _EXPERTS)
    products.multiply(192, down, 48, _ARRAY, out=_ARRAY)
    assert library.blocks == [("rf_gemm_q4_k_m64", 192 // 48 + 16)]


def test_no_rows_stay_where_there_are_no_kernels_for_it() -> None:
    kernels = [name for name, _ in _launched(96, 2048, _SILU, has_warpgroups=False)]
    assert kernels == ["rf_group_experts", "rf_gemm_q4_k_m32"]
