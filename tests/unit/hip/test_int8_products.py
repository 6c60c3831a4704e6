"""Which products of 9 to 16 rows int8 matrix instructions make, and which GEMM."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rocmforge_hip.device.driver import DeviceProperties
from rocmforge_hip.device.memory import DeviceArray, spec
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.geometry import Geometry, geometry_of
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.linear.int8_products import Int8Products
from rocmforge_hip.weights.formats import FORMATS, Matrix


class _Library:
    """Has every kernel."""

    def kernel(self, name: str, arguments: Any) -> str:
        return name


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
