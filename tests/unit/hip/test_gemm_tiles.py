"""Which kernel multiplies up to 16 rows as halves."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rocmforge_hip.device.constants import NOT_GATED
from rocmforge_hip.device.memory import DeviceArray, spec
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.linear.gemm import GemmKernels
from rocmforge_hip.weights.formats import FORMATS, Matrix


class _Kernel:
    max_threads = 256

    def __init__(self, name: str, launched: list[tuple[str, Any]]) -> None:
        self._name = name
        self._launched = launched

    def launch(self, grid: Any, threads: int, **arguments: Any) -> None:
        self._launched.append((self._name, grid))


class _Library:
    """Has every kernel but those for very many rows."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, Any]] = []

    def kernel(self, name: str, arguments: Any) -> _Kernel:
        return _Kernel(name, self.launched)

    def has(self, name: str) -> bool:
        return False


@pytest.mark.parametrize(
    ("name", "rows", "has_warpgroups", "tile"),
    [
        ("q4_k", 16, True, 64),
        ("q6_k", 9, True, 64),
        ("q4_k", 17, True, 32),
        ("q4_k", 33, True, 64),
        ("q8_0", 16, True, 32),
        ("q4_k", 16, False, 32),
    ],
)
def test_up_to_sixteen_rows_go_where_weights_come_through_lds(
    name: str, rows: int, has_warpgroups: bool, tile: int
) -> None:
    library = _Library()
    geometry = Geometry(132, has_warpgroups=has_warpgroups)
    nothing = DeviceArray(0, (rows, 28672), spec((), "f4").dtype)
    arrays = Forms(f32=nothing, f16=nothing)
    gemm = GemmKernels(
        cast(Any, library),
        geometry,
        cast(Any, None),
        frozenset({name}),
        FormKernels(cast(Any, library), 1),
    )
    x = Activation(arrays, rows, 4096, f16=nothing)
    matrix = Matrix(nothing, FORMATS[name], 28672, 4096, 28672)
    gemm.multiply(x, matrix, arrays, None, NOT_GATED, half=False)
    assert library.launched == [(f"rf_gemm_{name}_m{tile}", (1, 224, 1))]
