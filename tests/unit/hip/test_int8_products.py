"""Which products int8 matrix instructions make, and in which kernels."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rocmforge.models.blocks import Role
from rocmforge_hip.device.constants import NOT_GATED
from rocmforge_hip.device.driver import DeviceProperties
from rocmforge_hip.device.memory import DeviceArray, spec
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.geometry import Geometry, geometry_of
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.linear.int8_products import Int8Products
from rocmforge_hip.ops.linear.later import NormLater, UnmadeProduct
from rocmforge_hip.weights.formats import FORMATS, Matrix, MatrixPart, Vector
from rocmforge_hip.weights.products import Product
from tests.support.fakes.recording_library import RecordingLibrary


def _library(*, has_ahead: bool = False) -> RecordingLibrary:
    """Copies weights of large matrices ahead in q4_k alone."""

    def has(name: str) -> bool:
        is_ahead = name.startswith("rf_gemm_int8_deferred_ahead_")
        return name == "rf_gemm_int8_stream_q4_k" or (is_ahead and has_ahead)

    return RecordingLibrary(has, 896)


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
    library = cast(Any, _library())
    forms = FormKernels(library, 1)
    products = Int8Products(library, geometry, frozenset({name}), forms, 4096)
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
    library = _library()
    geometry = Geometry(132, matrix_rows=5, has_warpgroups=has_warpgroups)
    forms = FormKernels(cast(Any, library), 1)
    products = Int8Products(cast(Any, library), geometry, frozenset({name}), forms, 4096)
    array = DeviceArray(0, (rows, stored_rows), spec((), "f4").dtype)
    out = Forms(f32=array)
    matrix = Matrix(array, FORMATS[name], stored_rows, in_features, stored_rows)
    x = Activation(out, rows, in_features, q=array, q_scale=array)
    products.multiply(x, matrix, out, None, NOT_GATED, half=False)
    assert library.blocks == [(f"rf_gemm_int8_{kernel}", blocks)]


def _products(
    library: RecordingLibrary, *, slices: int = 1, hidden_size: int = 4096, **rules: Any
) -> Int8Products:
    geometry = Geometry(132, **{"matrix_rows": 5, "has_warpgroups": True, **rules})
    forms = FormKernels(cast(Any, library), slices)
    formats = frozenset({"q4_k", "q4_0", "q5_0"})
    return Int8Products(cast(Any, library), geometry, formats, forms, hidden_size)


def _matrix(name: str, rows: int, in_features: int) -> Matrix:
    nothing = DeviceArray(0, (), spec((), "f4").dtype)
    return Matrix(nothing, FORMATS[name], rows, in_features, rows)


@pytest.mark.parametrize(
    ("has_ahead", "hidden_size", "least"), [(True, 4096, 2), (True, 2048, 3), (False, 4096, 3)]
)
def test_two_long_rows_are_multiplied_where_weights_come_through_lds(
    has_ahead: bool, hidden_size: int, least: int
) -> None:
    products = _products(_library(has_ahead=has_ahead), hidden_size=hidden_size)
    counts = [rows for rows in range(1, 9) if products.is_for(rows, _matrix("q4_k", 4096, 4096))]
    assert counts[0] == least


@pytest.mark.parametrize(
    ("name", "rows", "slices", "stored_rows", "defers"),
    [
        ("q4_k", 8, 1, 4096, True),
        ("q4_k", 4, 2, 4096, False),
        ("q4_k", 8, 1, 28672, False),
        ("q4_k", 8, 1, 4112, False),
        ("q4_0", 8, 1, 4096, True),
    ],
    ids=["sums", "two_slices", "copied_ahead", "no_whole_quant_blocks", "unmixed"],
)
def test_norms_of_sums_are_left_for_later_where_kernels_can(
    name: str, rows: int, slices: int, stored_rows: int, defers: bool
) -> None:
    products = _products(_library(), slices=slices)
    assert products.defers(rows, _matrix(name, stored_rows, 4096)) == defers


@pytest.mark.parametrize(
    ("has_ahead", "rules", "in_features", "kernel", "threads"),
    [
        (True, {}, 4096, "deferred_ahead_q5_0", 256),
        (False, {}, 4096, "deferred_q5_0", 512),
        (True, {}, 2880, "deferred_q5_0", 512),
        (True, {"least_wide_blocks": 1}, 4096, "deferred_ahead_q5_0", 448),
    ],
    ids=["through_lds", "side_by_side", "no_whole_steps", "as_wide_blocks"],
)
def test_as_many_waves_have_a_part_of_k_as_in_the_product_alone(
    has_ahead: bool, rules: dict[str, int], in_features: int, kernel: str, threads: int
) -> None:
    library, matrix = _library(has_ahead=has_ahead), _matrix("q5_0", 4096, in_features)
    array = DeviceArray(0, (8, 4096), spec((), "f4").dtype)
    x = Activation(Forms(f32=array), 8, in_features, q=array, q_scale=array)
    part = MatrixPart(matrix, 0, 4096, Product.DELTA, Role.ROW)
    product = UnmadeProduct(Forms(f32=array), 8, 4096, x=x, part=part, bias=None, defers=True)
    residual = Activation(Forms(f32=array), 8, 4096, f32=array)
    weight = Vector(DeviceArray(0, (4096,), array.dtype))
    out = NormLater(
        *(Forms(f32=array), 8, 4096),
        residual=residual,
        weight=weight,
        squares=array,
        eps=1e-5,
        q=array,
        q_scale=array,
    )
    _products(library, **rules).add_and_defer(product, out)
    assert library.blocks == [(f"rf_gemm_int8_{kernel}", 128)]
    assert library.threads == [threads]


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
