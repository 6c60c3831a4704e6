"""Which kernel multiplies rows as halves, and what becomes of splits of K."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocmforge_hip.device.constants import NOT_GATED
from rocmforge_hip.device.memory import DeviceArray, spec
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.linear.gemm import Factor, GemmKernels, UnmadeSplits
from rocmforge_hip.weights.formats import FORMATS, Matrix, round_up
from tests.support.fakes.recording_library import RecordingLibrary

F32 = spec((), "f4").dtype


def gemm_of(
    library: RecordingLibrary, name: str, geometry: Geometry, arena: Any = None
) -> GemmKernels:
    kernels = cast(Any, library)
    return GemmKernels(kernels, geometry, arena, frozenset({name}), FormKernels(kernels, 1))


@pytest.mark.parametrize(
    ("name", "rows", "has_few", "kernel"),
    [
        ("q4_k", 9, True, "rf_gemm_q4_k_r16"),
        ("q8_0", 16, True, "rf_gemm_q8_0_r16"),
        ("q4_k", 17, True, "rf_gemm_q4_k_r32"),
        ("q4_k", 33, True, "rf_gemm_q4_k_r64"),
        ("q4_k", 64, True, "rf_gemm_q4_k_r64"),
        ("q4_k", 65, True, "rf_gemm_q4_k_r128"),
        ("q8_0", 65, True, "rf_gemm_q8_0_m128"),
        ("q4_k", 128, True, "rf_gemm_q4_k_r128"),
        ("q4_k", 129, True, "rf_gemm_wide_q4_k_r256"),
        ("q4_k", 16, False, "rf_gemm_q4_k_m32"),
        ("q4_k", 33, False, "rf_gemm_q4_k_m64"),
        ("q4_k", 65, False, "rf_gemm_q4_k_m128"),
    ],
)
def test_few_rows_have_kernels_of_their_own(
    name: str, rows: int, has_few: bool, kernel: str
) -> None:
    library = RecordingLibrary(lambda kernel: has_few and kernel != "rf_gemm_q8_0_r128")
    geometry = Geometry(132)
    nothing = DeviceArray(0, (rows, 28672), spec((), "f4").dtype)
    arrays = Forms(f32=nothing, f16=nothing)
    gemm = gemm_of(library, name, geometry)
    x = Activation(arrays, rows, 4096, f16=nothing)
    matrix = Matrix(nothing, FORMATS[name], 28672, 4096, 28672)
    gemm.multiply(x, matrix, arrays, None, NOT_GATED, half=False)
    assert library.launched == [(kernel, (1, 224, 1))]


@pytest.mark.parametrize(
    ("rows", "kernel"),
    [
        (64, "rf_gemm_q4_k_r64"),
        (100, "rf_gemm_q4_k_r128"),
        (1024, "rf_gemm_wide_q4_k_r256"),
        (1038, "rf_gemm_wide_q4_k_r272"),
    ],
)
@pytest.mark.parametrize("taken", [False, True])
def test_what_splits_left_is_added_up_before_others_take_its_place(
    rows: int, kernel: str, *, taken: bool
) -> None:
    library = RecordingLibrary(lambda name: True)
    arena = SimpleNamespace(gemm_partial=DeviceArray(0, (1,), F32))
    gemm = gemm_of(library, "q4_k", Geometry(132), arena)
    matrix = Matrix(DeviceArray(0, (1,), F32), FORMATS["q4_k"], 2048, 4096, 2048)

    def product() -> Activation:
        result = Forms(f32=DeviceArray(0, (rows, 2048), F32))
        x = Activation(result, rows, 4096, f16=DeviceArray(0, (rows, 4096), F32))
        return gemm.multiply(x, matrix, result, None, NOT_GATED, half=False, leaves_splits=True)

    first = product()
    assert isinstance(first, UnmadeSplits)
    assert first.splits > 1
    if taken:
        gemm.take(first)
    second = product()
    names = [name for name, _ in library.launched]
    assert names == [kernel, *(() if taken else ("rf_gemm_sum",)), kernel]
    assert (first.f32 is None) == taken
    assert isinstance(second, UnmadeSplits)
    assert gemm.make(second).f32 is not None
    assert gemm.make(second) is second
    assert [name for name, _ in library.launched][-1] == "rf_gemm_sum"
    assert len(library.launched) == len(names) + 1, "it is made once"


def two(
    names: tuple[str, str] = ("q4_k", "q6_k"),
    features: tuple[int, int] = (5120, 1024),
    rows: int = 12,
    in_features: int = 4096,
    has: Callable[[str], bool] = lambda name: True,
) -> tuple[RecordingLibrary, list[Activation]]:
    """What one launch makes of two matrices, if one does, in their order, and the launches.

    The bias of each lies behind its result.
    """
    library = RecordingLibrary(has)
    kernels, arena = cast(Any, library), SimpleNamespace(gemm_partial=DeviceArray(0, (1,), F32))
    forms = FormKernels(kernels, 1)
    gemm = GemmKernels(kernels, Geometry(132), cast(Any, arena), frozenset(names), forms)
    halves = DeviceArray(0, (rows, in_features), F32)
    x = Activation(Forms(f16=halves), rows, in_features, f16=halves)
    factors = [
        Factor(
            Matrix(DeviceArray(0, (1,), F32), FORMATS[name], each, in_features, round_up(each, 32)),
            Forms(f32=DeviceArray(each, (64, each), F32)),
            DeviceArray(each + 1, (each,), F32),
        )
        for name, each in zip(names, features, strict=True)
    ]
    products = gemm.multiply_two(x, factors, half=False)
    return library, [products[factor.matrix] for factor in factors] if products else []


@pytest.mark.parametrize(("rows", "most"), [(9, 16), (17, 32), (64, 64)])
@pytest.mark.parametrize("other", ["q4_k", "q5_k"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_one_launch_multiplies_with_q6_k_and_another_type(
    other: str, rows: int, most: int, *, is_first: bool
) -> None:
    by_order = (other, 5120), ("q6_k", 1024)
    first, second = by_order if is_first else by_order[::-1]
    names, features = (first[0], second[0]), (first[1], second[1])
    library, products = two(names, features, rows=rows)
    assert [(each.rows, each.features) for each in products] == [(rows, each) for each in features]
    (product, (_, tiles, splits)), total = library.launched
    assert (product, tiles) == (f"rf_gemm_beside_q6_k_{other}_r{most}", 40 + 8)
    assert splits > 1
    assert total == ("rf_gemm_sum", (24, rows, 1))
    added = library.arguments[-1]
    places = [added[name].address for name in ("out", "bias", "second_out", "second_bias")]
    assert places == [5120, 5121, 1024, 1025]


@pytest.mark.parametrize(
    "changed",
    [
        {"names": ("q4_k", "q4_k")},
        {"names": ("q4_k", "q8_0")},
        {"names": ("q8_0", "q6_k")},
        {"features": (5120, 1000)},
        {"features": (28672, 1024)},
        {"in_features": 256},
        {"rows": 65},
        {"has": lambda name: "beside" not in name},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_other_pairs_of_matrices_have_launches_of_their_own(changed: dict[str, Any]) -> None:
    known: dict[str, Any] = {"has": lambda name: not name.endswith(("q8_0_r16", "_r128"))}
    library, products = two(**(known | changed))
    assert not products
    assert not library.launched
