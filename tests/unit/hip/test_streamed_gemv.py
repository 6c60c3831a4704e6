"""Which products of one row have weights that come through LDS."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocmforge_hip.device.memory import DeviceArray, spec
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear.streamed_gemv import StreamedGemv
from rocmforge_hip.weights.formats import FORMATS, Matrix

NOTHING = DeviceArray(0, (), spec((), "f4").dtype)


class _Library:
    """Has these kernels or not; of each, three blocks fit on a compute unit."""

    def __init__(self, *, has_them: bool) -> None:
        self._has_them = has_them

    def kernel(self, name: str, arguments: Any) -> Any:
        return SimpleNamespace(name=name, blocks_at_once=lambda threads: 3)

    def has(self, name: str) -> bool:
        return self._has_them


def _matrix(name: str, rows: int, in_features: int) -> Matrix:
    return Matrix(NOTHING, FORMATS[name], rows, in_features, rows)


def _streamed(*, has_them: bool = True) -> StreamedGemv | None:
    return StreamedGemv.of(cast(Any, _Library(has_them=has_them)), Geometry(132))


@pytest.fixture
def streamed() -> StreamedGemv:
    found = _streamed()
    assert found is not None
    return found


def test_devices_without_these_kernels_use_others() -> None:
    assert _streamed(has_them=False) is None


def test_all_matrices_of_a_launch_are_in_formats_that_it_knows(streamed: StreamedGemv) -> None:
    known = [_matrix(name, 1024, 4096) for name in ("q4_k", "q6_k")]
    assert streamed.takes(known)
    assert not streamed.takes([*known, _matrix("q5_k", 1024, 4096)])
    assert not streamed.takes([_matrix("q4_k", 1024, 2048)])
    assert [streamed.takes_gated(matrix) for matrix in known] == [True, False]


@pytest.mark.parametrize(("outputs", "takes"), [(2048, False), (4096, True)])
def test_sums_are_made_so_where_they_are_wide(
    streamed: StreamedGemv, outputs: int, takes: bool
) -> None:
    assert streamed.takes_deferred(_matrix("q6_k", outputs, 17408)) == takes


def test_there_are_no_more_blocks_than_run_at_once(streamed: StreamedGemv) -> None:
    assert streamed.gated(544)[1] == ((396, 1, 1), 256)
    assert streamed.mixed(40)[1] == ((40, 1, 1), 256)
