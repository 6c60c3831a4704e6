"""How long tokens wait for prompts, and prompts for each other, on devices that are only laws."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmforge.backend.step import StepInput
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule import scheduler, step_costs, time_budget
from rocmforge.engine.schedule.batch import build_step
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.schedule.step_builder import TILE_TOKENS, StepBuilder
from rocmforge.engine.schedule.step_costs import TILES, StepWork, pairs_of
from rocmforge.engine.schedule.time_budget import LEAST_TOKENS, TimeBudget
from rocmforge.engine.sequence.sequence import Status
from tests.support.fakes.virtual_device import (
    Arrival,
    Law,
    Run,
    VirtualClock,
    VirtualDevice,
    simulate,
)
from tests.unit.engine.helpers import request

STALL_MS = 30.0
LONG = 8000


def law(
    fixed: float = 3e6,
    token: float = 55e3,
    pair: float = 8.0,
    context: float = 33.0,
    tile: int = 1,
) -> Law:
    """A device with these prices in nanoseconds; attention costs more than on an H200.

    Its matrix products compute whole tiles of tokens: its steps are a staircase.
    """

    def seconds(step: StepInput) -> float:
        counts = np.diff(step.query_start).astype(np.int64)
        is_prompt = counts > 1
        n, starts = counts[is_prompt], (step.context_len - counts)[is_prompt]
        pairs = float((n * starts + n * (n + 1) / 2).sum())
        read = float(step.context_len[~is_prompt].sum())
        tokens = -(-step.num_tokens // tile) * tile
        return 1e-9 * (fixed + token * tokens + pair * pairs + context * read)

    return seconds


def limits(stall_ms: float = STALL_MS, max_batched_tokens: int = 2048) -> SchedulerLimits:
    return SchedulerLimits(
        max_sequences=32,
        max_batched_tokens=max_batched_tokens,
        max_waiting=10_000,
        max_stall_ns=round(1e6 * stall_ms),
    )


def beside(*prompts: int, streams: int = 4, at_s: float = 0.2) -> list[Arrival]:
    """Some streams that decode, and prompts that come in together."""
    decoding = [Arrival(0.0, 40, 250) for _ in range(streams)]
    return [*decoding, *(Arrival(at_s, prompt, 4) for prompt in prompts)]


def longest_gap_ms(run: Run) -> float:
    """The longest time between two tokens of a stream."""
    return 1e3 * max(gap for seen in run.seen for _, gap in seen.gaps)


def first_token_s(run: Run, num_prompt: int) -> float:
    return max(seen.first_token_s for seen in run.seen if seen.arrival.num_prompt == num_prompt)


def test_tokens_wait_as_long_as_a_budget_of_tokens_takes() -> None:
    run = simulate(law(), limits(stall_ms=0), beside(LONG))
    assert longest_gap_ms(run) > 5 * STALL_MS


@pytest.mark.parametrize("tile", [1, *TILES])
def test_no_token_waits_longer_than_the_stall_that_is_allowed(tile: int) -> None:
    assert longest_gap_ms(simulate(law(tile=tile), limits(), beside(LONG))) < 1.15 * STALL_MS


def test_what_passes_between_two_steps_counts_as_stall() -> None:
    run = simulate(law(), limits(), beside(LONG), between_ns=2_000_000)
    gaps = [1e3 * gap for seen in run.seen for at, gap in seen.gaps if gap > 0.02]
    assert len(gaps) > 50
    assert np.quantile(gaps, 0.75) < 1.01 * STALL_MS


def test_steps_shrink_little_for_a_host_that_comes_late() -> None:
    run = simulate(law(), limits(), beside(LONG), between_ns=100_000_000)
    mixed = [took for step, took in run.device.steps if 1 < step.num_sequences < step.num_tokens]
    assert np.median(mixed) > 0.85e6 * STALL_MS


def test_no_step_waits_for_a_module_to_be_imported() -> None:
    """`np.median` imports for 30 ms when it is called first: between the first two steps."""
    program = """
import sys
from rocmforge.engine.schedule.limits import SchedulerLimits
from tests.support.fakes.virtual_device import Arrival, simulate
limits = SchedulerLimits(
    max_sequences=4, max_batched_tokens=512, max_waiting=4, max_stall_ns=30_000_000
)
before = set(sys.modules)
simulate(lambda step: 1e-3 + 1e-5 * step.num_tokens, limits, [Arrival(0, 500, 9)] * 2)
print(sorted(set(sys.modules) - before))
"""
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, capture_output=True, check=True, cwd=root)
    assert output.stdout.strip() == b"[]"


def test_what_decodes_leave_is_all_given_to_prompts() -> None:
    run = simulate(law(), limits(), beside(LONG))
    mixed = [
        took / 1e6 for step, took in run.device.steps if 1 < step.num_sequences < step.num_tokens
    ]
    assert np.median(mixed) > 0.9 * STALL_MS


def test_what_was_predicted_is_counted_beside_what_was_measured() -> None:
    run = simulate(law(), limits(), beside(LONG))
    with_prompts = sum(
        took for step, took in run.device.steps if step.num_tokens > step.num_sequences
    )
    counted = run.totals
    assert 0.9 * with_prompts < counted.prompt_step_ns <= with_prompts, "all that were predicted"
    assert counted.predicted_step_ns == pytest.approx(counted.prompt_step_ns, rel=0.1)
    assert 0 < counted.prediction_error_ns < 0.1 * counted.prompt_step_ns


@pytest.mark.parametrize("tile", [1, 128])
def test_two_prompts_share_one_budget(tile: int) -> None:
    run = simulate(law(tile=tile), limits(), beside(LONG, 3000, 2999))
    assert longest_gap_ms(run) < 1.15 * STALL_MS


def test_when_nothing_decodes_a_prompt_takes_the_budget_of_tokens() -> None:
    run = simulate(law(), limits(), [Arrival(0.0, LONG, 1)])
    assert [step.num_tokens for step, _ in run.device.steps] == [2048, 2048, 2048, 1856]


def test_the_budget_of_tokens_stays_the_upper_bound() -> None:
    run = simulate(law(token=10.0, pair=0.0), limits(max_batched_tokens=256), beside(LONG))
    assert max(step.num_tokens for step, _ in run.device.steps) == 256


def test_the_first_chunk_beside_decodes_is_a_small_one() -> None:
    """Nothing but one short prompt has been measured then, on a device slower than any."""
    run = simulate(law(token=2e6), limits(), beside(LONG, streams=1, at_s=1.0))
    beside_decode = [step for step, _ in run.device.steps if step.num_sequences == 2]
    assert beside_decode[0].num_tokens <= 80


def test_steps_that_time_limits_are_whole_tiles() -> None:
    run = simulate(law(pair=0.0), limits(), beside(LONG))
    sizes = [step.num_tokens for step, _ in run.device.steps if step.num_tokens > 300]
    assert len(sizes) > 10
    assert [size for size in sizes[:-1] if size % TILE_TOKENS] == []


def test_a_prompt_that_fits_is_not_cut_at_a_tile() -> None:
    """Nor is its last part."""
    run = simulate(law(), limits(), [*beside(LONG), Arrival(1.0, 70, 4)])
    whole = [step for step, _ in run.device.steps if 70 in np.diff(step.query_start)]
    assert len(whole) == 1


def test_a_staircase_that_is_learnt_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would only begin a tile waits; what fills one does not."""
    device = law(token=35e3, pair=1.0, tile=256)
    arrivals = beside(20_000, streams=16)
    run = simulate(device, limits(), arrivals)
    monkeypatch.setattr(step_costs, "_in_tiles", lambda tokens: (tokens, 0, 0, 0))
    linear = simulate(device, limits(), arrivals)
    assert first_token_s(run, 20_000) < 0.95 * first_token_s(linear, 20_000)
    assert longest_gap_ms(run) <= longest_gap_ms(linear)


def without_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(chunks: list[Chunk]) -> StepWork:
        return StepWork.of(chunks)._replace(pairs=0.0)

    class Forgetful(StepWork):
        pass

    monkeypatch.setattr(Forgetful, "of", staticmethod(of))
    monkeypatch.setattr(scheduler, "StepWork", Forgetful)
    monkeypatch.setattr(time_budget, "pairs_of", lambda start, count: 0.0)


def budget_for_the_first_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeBudget, "take", lambda self, start, count, rows: None)


def no_trust_in_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_costs.StepCosts, "observe", lambda self, *measured: 0.0)
    monkeypatch.setattr(step_costs.StepCosts, "most_tokens", property(lambda self: 1 << 20))


MIXED = [
    *beside(LONG),
    *(late for number in range(8) for late in beside(1500, 1500, streams=0, at_s=0.5 + number / 4)),
]


@pytest.mark.parametrize(
    ("mistake", "device", "arrivals"),
    [
        (without_pairs, law(pair=80.0), MIXED),
        (budget_for_the_first_only, law(), beside(LONG, 3000, 2999)),
        (no_trust_in_measurements, law(), beside(LONG)),
    ],
)
def test_planted_mistakes_make_tokens_wait(
    mistake: Callable[[pytest.MonkeyPatch], None],
    device: Law,
    arrivals: list[Arrival],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = longest_gap_ms(simulate(device, limits(), arrivals))
    mistake(monkeypatch)
    assert longest_gap_ms(simulate(device, limits(), arrivals)) > 1.3 * right


def test_prompts_get_half_of_a_device_whose_decodes_alone_take_longer() -> None:
    """A CPU: 60 ms for a decode, 5 ms for a token of a prompt, whatever stall is allowed."""
    slow = law(fixed=60e6, token=5e6, pair=300.0)
    run = simulate(slow, limits(), [Arrival(0.0, 8, 100), Arrival(1.0, 400, 4)], depth=1)
    steps = [step for step in run.device.steps if 2 == step[0].num_sequences < step[0].num_tokens]
    assert max(took for _, took in steps[1:]) < 1.3 * 2 * 65e6
    assert 400 / len(steps) > 10


def test_a_prompt_gets_on_even_if_one_token_takes_longer_than_the_stall() -> None:
    run = simulate(law(fixed=0, token=50e6, pair=1e5), limits(), beside(200, streams=1), depth=1)
    steps = [step for step, _ in run.device.steps if step.num_sequences == 2]
    assert all(step.num_tokens > LEAST_TOKENS // 2 for step in steps[:5])


def test_a_device_that_becomes_half_as_fast_is_followed() -> None:
    fast, slow = law(), law(6e6, 110e3, 16.0, 66.0)

    def throttled(step: StepInput) -> float:
        return (fast if step.step_id < 150 else slow)(step)

    run = simulate(throttled, limits(), beside(2 * LONG, streams=4))
    steps = [took / 1e6 for step, took in run.device.steps if step.num_sequences == 5]
    assert np.quantile(steps, 0.9) < 1.25 * STALL_MS
    assert sum(took > 1.3 * STALL_MS for took in steps) <= 4


@pytest.mark.parametrize(("streams", "tile"), [(0, 1), (4, 1), (4, 128)])
def test_a_short_prompt_does_not_wait_for_a_long_one(streams: int, tile: int) -> None:
    arrivals = [*beside(20_000, streams=streams), Arrival(0.4, 300, 4)]
    in_order = simulate(law(tile=tile), limits(stall_ms=0), arrivals)
    run = simulate(law(tile=tile), limits(), arrivals)
    assert first_token_s(run, 300) < 0.6
    assert first_token_s(run, 300) < 0.3 * first_token_s(in_order, 300)


@pytest.mark.parametrize(("tile", "size"), [(1, 300), (64, 1000), (128, 300), (256, 300)])
def test_a_long_prompt_takes_at_most_twice_as_long_for_all_that_overtake_it(
    tile: int, size: int
) -> None:
    alone = simulate(law(tile=tile), limits(), beside(LONG))
    flood = [Arrival(0.2 + 0.01 * number, size, 1) for number in range(1, 400)]
    run = simulate(law(tile=tile), limits(), [*beside(LONG), *flood])
    assert first_token_s(run, LONG) < 2.3 * first_token_s(alone, LONG)


def test_without_a_bound_on_overtaking_it_would_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is what the test before would find."""
    monkeypatch.setattr(StepBuilder, "reserve_half", lambda self, first: None)
    monkeypatch.setattr(StepBuilder, "give_back", lambda self: None)
    alone = simulate(law(), limits(), beside(LONG))
    flood = [Arrival(0.2 + 0.01 * number, 300, 1) for number in range(1, 400)]
    run = simulate(law(), limits(), [*beside(LONG), *flood])
    assert first_token_s(run, LONG) > 2.3 * first_token_s(alone, LONG)


@settings(deadline=None, max_examples=40)
@given(
    arrivals=st.lists(
        st.lists(st.sampled_from([3, 40, 150, 600]), min_size=1, max_size=3), max_size=8
    ),
    stall_ms=st.sampled_from([0.5, 5.0, 30.0]),
    token=st.sampled_from([1e3, 55e3, 2e6]),
    num_tokens=st.sampled_from([20_000, 1_000]),
    tile=st.sampled_from([1, 128, 256]),
)
def test_the_first_in_order_gets_half_of_what_any_step_has_for_prompts(
    arrivals: list[list[int]], stall_ms: float, token: float, num_tokens: int, tile: int
) -> None:
    """Also with so few blocks that sequences are preempted. So each gets on, and ends."""
    device = VirtualDevice(
        law(token=token, pair=0.0, tile=tile), VirtualClock(), num_tokens=num_tokens
    )
    engine = scheduler.Scheduler(device.info, limits(stall_ms), Totals())
    coming, added = deque([[3, 3], [600], *arrivals]), 0
    while coming or engine.has_work:
        for size in coming.popleft() if coming else ():
            prompt = [added, *range(size)]
            engine.add(request(added, prompt, SamplingParams(max_tokens=9 - added % 9)), 0)
            added += 1
        before = [(seq, seq.num_new) for seq in engine.running if seq.num_new > 1]
        chunks = engine.schedule(1)
        got = {chunk.sequence: chunk.num_tokens for chunk in chunks if not chunk.is_decode}
        if before and before[0][0].status is Status.RUNNING:
            first, wanted = before[0]
            others = sum(count for seq, count in got.items() if seq is not first)
            # It may get less than a tile less than half, to fill one; others get that.
            least = max(others - 2 * (max(TILE_TOKENS, tile) - 1), LEAST_TOKENS // 2)
            assert got.get(first, 0) >= min(wanted, least)
        if chunks:
            device.submit(build_step(engine.totals.steps, chunks, device.info.block_size))
            engine.commit(chunks, device.collect(), 1)
        engine.check_integrity()


def test_pairs_are_the_positions_that_a_chunk_attends_to() -> None:
    assert pairs_of(10, 3) == 11 + 12 + 13
