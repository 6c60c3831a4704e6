"""Which products int8 matrix instructions make, and in which kernels."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rocmforge_hip.device.constants import NOT_GATED
from rocmforge_hip.device.driver import DeviceProperties
from rocmforge_hip.device.memory import DeviceArray, spec
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.geometry import Geometry, geometry_of
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.linear.int8_products import Int8Products
from rocmforge_hip.weights.formats import FORMATS, Matrix


class _Kernel:
    max_threads = 896

    def __init__(self, name: str, launched: list[tuple[str, Any]]) -> None:
        self._name = name
        self._launched = launched

    def launch(self, grid: Any, threads: int, **arguments: Any) -> None:
        self._launched.append((self._name, grid[0]))


class _Library:
    """Has every kernel, but copies weights ahead in q4_k alone."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, Any]] = []

    def kernel(self, name: str, arguments: Any) -> _Kernel:
        return _Kernel(name, self.launched)

    def has(self, name: str) -> bool:
        return name == "rf_gemm_int8_stream_q4_k"


@pytest.mark.parametrize(
    ("name", "rows", "has_warpgroups", "is_int8"),
    [
        ("q4_k", 16, False, True),
        ("q4_k", 16, True, False),
        ("q8_0", 16, True, True),
        ("q8_0", 17, True, False),
        ("q6_k", 16, False, False),
    ],
)
def test_late_rows_go_where_they_were_measured_to_be_faster(
    name: str, rows: int, has_warpgroups: bool, is_int8: bool
) -> None:
    geometry = Geometry(132, matrix_rows=5, has_warpgroups=has_warpgroups)
    library = cast(Any, _Library())
    products = Int8Products(library, geometry, frozenset({name}), FormKernels(library, 1))
    nothing = DeviceArray(0, (), spec((), "f4").dtype)
    matrix = Matrix(nothing, FORMATS[name], 28672, 4096, 28672)
    x = Activation(Forms(f32=nothing), rows, 4096, f32=nothing)
    assert products.is_for_more(x, matrix) == is_int8


@pytest.mark.parametrize(
    ("name", "rows", "stored_rows", "in_features", "has_warpgroups", "kernel", "blocks"),
    [
        ("q4_k", 8, 28672, 4096, True, "stream_q4_k", 132),
        ("q4_k", 3, 28672, 7168, True, "stream_q4_k", 132),
        ("q4_k", 9, 28672, 4096, True, "wide_q4_k_r16", 896),
        ("q4_k", 8, 28672, 7424, True, "wide_q4_k_r8", 896),
        ("q4_k", 8, 4096, 4096, True, "q4_k", 256),
        ("q4_k", 8, 28672, 4096, False, "wide_q4_k_r8", 896),
        ("q6_k", 8, 28672, 4096, True, "wide_q6_k_r8", 896),
    ],
)
def test_large_matrices_are_copied_ahead(
    name: str,
    rows: int,
    stored_rows: int,
    in_features: int,
    has_warpgroups: bool,
    kernel: str,
    blocks: int,
) -> None:
    library = _Library()
    geometry = Geometry(132, matrix_rows=5, has_warpgroups=has_warpgroups)
    forms = FormKernels(cast(Any, library), 1)
    products = Int8Products(cast(Any, library), geometry, frozenset({name}), forms)
    array = DeviceArray(0, (rows, stored_rows), spec((), "f4").dtype)
    out = Forms(f32=array)
    matrix = Matrix(array, FORMATS[name], stored_rows, in_features, stored_rows)
    x = Activation(out, rows, in_features, q=array, q_scale=array)
    products.multiply(x, matrix, out, None, NOT_GATED, half=False)
    assert library.launched == [(f"rf_gemm_int8_{kernel}", blocks)]


@pytest.mark.parametrize(("target", "has"), [("sm_90", True), ("sm_100", False), ("gfx942", False)])
def test_hopper_alone_multiplies_in_warpgroups(target: str, has: bool) -> None:
    device = DeviceProperties(
        index=0,
        name="",
        target=target,
        wave_size=32,
        compute_units=132,
        memory_total=1 << 30,
        is_integrated=False,
        pci_id="",
    )
    assert geometry_of(device).has_warpgroups == has
