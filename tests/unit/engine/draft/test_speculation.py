"""Which times of steps are remembered, and how many draft tokens follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge.engine.draft.step_times import StepTimes
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.sequence.drafting import Acceptance
from tests.support.fakes.fake_backend import FakeConfig
from tests.unit.engine.helpers import Bench, request


def times(**seen: list[float]) -> StepTimes:
    made = StepTimes()
    for size, values in seen.items():
        for value in values:
            made.take(int(size[1:]), value)
    return made


def estimate(made: StepTimes, *sizes: int) -> list[float]:
    found: list[float] = made.estimate(np.array(sizes)).tolist()
    return found


def test_one_measurement_is_not_believed() -> None:
    made = times(n4=[100.0])
    assert not made.knows(4)
    assert estimate(made, 4) == [0.0]


def test_what_happened_once_is_left_out() -> None:
    assert estimate(times(n4=[900.0, 10.0]), 4) == [10.0]
    assert estimate(times(n4=[10.0, 900.0, 12.0]), 4) == [12.0]
    assert estimate(times(n4=[1.0, 10.0, 10.0, 11.0]), 4) == [10.0]


def test_between_sizes_it_is_a_line_and_beyond_them_the_nearest() -> None:
    made = times(n4=[10.0, 10.0], n8=[30.0, 30.0])
    assert estimate(made, 1, 4, 6, 8, 99) == [10.0, 10.0, 20.0, 30.0, 30.0]
    assert [made.knows(size) for size in (3, 4, 6, 8, 9)] == [False, True, True, True, False]
    made.forget(8)
    assert not made.knows(8)


def test_the_rate_is_of_draft_tokens_behind_accepted_ones() -> None:
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.count(drafted=4, accepted=2)  # two accepted, one rejected, one unknown
    assert acceptance.rate == pytest.approx(2 / 3, abs=0.01)
    acceptance.count(drafted=4, accepted=4)
    assert acceptance.rate > 2 / 3


def test_where_checking_never_pays_it_is_tried_ever_more_rarely() -> None:
    bench = Bench(FakeConfig(token_ns=4000), draft=FakeConfig(wrong_one_in=2))
    sampling = SamplingParams(max_tokens=1500, draft_model_tokens=4)
    bench.run(request(1, [1, 5], sampling))
    assert 2 <= bench.stats.totals.model_drafts <= 12


@pytest.mark.slow
@pytest.mark.parametrize(("token_ns", "least", "most"), [(0, 3.5, 4.0), (400, 0.0, 2.0)])
def test_the_costlier_a_token_is_to_check_the_fewer_are_drafted(
    token_ns: int, least: float, most: float
) -> None:
    bench = Bench(FakeConfig(token_ns=token_ns), draft=FakeConfig(wrong_one_in=5))
    sampling = SamplingParams(max_tokens=300, draft_model_tokens=4)
    bench.run(*[request(i, [i, 5], sampling) for i in range(4)])
    stats = bench.stats
    at_once = stats.totals.model_drafted_tokens / max(stats.totals.model_drafts, 1)
    assert least <= at_once <= most


def test_no_more_tokens_are_drafted_than_there_are_slots_for_states() -> None:
    """Nine for eight sequences: one for each, and not four for the first two."""
    bench = Bench(FakeConfig(num_slots=8 + 9), draft=FakeConfig())
    sampling = SamplingParams(max_tokens=60, draft_model_tokens=4)
    bench.run(*[request(i, [i, 5], sampling) for i in range(8)])
    assert bench.stats.totals.model_drafts == bench.stats.totals.model_drafted_tokens > 8
