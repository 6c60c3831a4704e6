"""Who runs when: budgets, order, chunking, admission."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rocmforge.backend.step import StepOutput
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, SamplingParams
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.schedule.scheduler import Scheduler
from rocmforge.errors import ConfigurationError
from tests.support.fakes.fake_backend import FakeConfig, FakeRunner
from tests.unit.engine.helpers import limits, request


def make(
    chosen: SchedulerLimits | None = None, *, num_blocks: int = 100, max_context: int = 400
) -> Scheduler:
    config = FakeConfig(block_size=4, num_blocks=num_blocks, max_context=max_context)
    info = FakeRunner(config, max_context, 8, 64).info
    return Scheduler(info, chosen or limits(), Totals())


def add(scheduler: Scheduler, request_id: int, num_prompt: int, max_tokens: int = 10) -> None:
    """Adds a request whose prompt shares no prefix with any other."""
    prompt = range(1000 * request_id, 1000 * request_id + num_prompt)
    scheduler.add(request(request_id, prompt, SamplingParams(max_tokens=max_tokens)), 0)


def shape(chunks: list[Chunk]) -> list[tuple[int, int, int]]:
    """(request, first position, tokens) of each chunk."""
    return [(chunk.sequence.request.request_id, chunk.start, chunk.num_tokens) for chunk in chunks]


def answer(scheduler: Scheduler, chunks: list[Chunk], token: int = 7) -> None:
    rows = sum(chunk.num_rows for chunk in chunks)
    output = StepOutput(
        step_id=0,
        token_ids=np.full(rows, token, np.int32),
        logprobs=None,
        top_ids=None,
        top_logprobs=None,
        device_ns=0,
    )
    scheduler.commit(chunks, output, 0)


def run_step(scheduler: Scheduler) -> list[tuple[int, int, int]]:
    chunks = scheduler.schedule(0)
    answer(scheduler, chunks)
    scheduler.check_integrity()
    return shape(chunks)


def test_a_long_prompt_is_cut_into_chunks_of_the_budget() -> None:
    scheduler = make(limits(max_batched_tokens=16))
    add(scheduler, 0, 40)
    assert [run_step(scheduler) for _ in range(4)] == [
        [(0, 0, 16)],
        [(0, 16, 16)],
        [(0, 32, 8)],
        [(0, 40, 1)],
    ]


def test_decodes_come_first_and_prompts_get_what_is_left() -> None:
    scheduler = make(limits(max_batched_tokens=16))
    add(scheduler, 0, 4)
    run_step(scheduler)
    add(scheduler, 1, 40)
    add(scheduler, 2, 4)
    assert run_step(scheduler) == [(0, 4, 1), (1, 0, 15)]
    assert run_step(scheduler) == [(0, 5, 1), (1, 15, 15)]
    assert run_step(scheduler) == [(0, 6, 1), (1, 30, 10), (2, 0, 4)]


def test_no_more_sequences_run_than_allowed_and_the_next_follows_at_once() -> None:
    scheduler = make(limits(max_sequences=2))
    for i in range(3):
        add(scheduler, i, 4, max_tokens=2)
    assert [step[0] for step in run_step(scheduler)] == [0, 1]
    assert [step[0] for step in run_step(scheduler)] == [0, 1]
    assert [step[0] for step in run_step(scheduler)] == [2]


def test_a_request_that_does_not_fit_yet_is_not_overtaken() -> None:
    scheduler = make(num_blocks=10, max_context=40)
    add(scheduler, 0, 20, max_tokens=2)
    add(scheduler, 1, 30, max_tokens=2)
    add(scheduler, 2, 2, max_tokens=2)
    assert [step[0] for step in run_step(scheduler)] == [0]
    assert [step[0] for step in run_step(scheduler)] == [0]
    assert [step[0] for step in run_step(scheduler)] == [1, 2]


def test_a_newcomer_leaves_a_block_for_each_running_sequence_to_grow_into() -> None:
    scheduler = make(num_blocks=4, max_context=16)
    add(scheduler, 0, 4, max_tokens=3)
    add(scheduler, 1, 12, max_tokens=1)
    ran = [[request_id for request_id, _, _ in run_step(scheduler)] for _ in range(4)]
    assert ran == [[0], [0], [0], [1]]
    assert scheduler.totals.preemptions == 0


def test_the_newest_gives_way_and_comes_back_before_those_that_arrived_later() -> None:
    scheduler = make(limits(max_sequences=2), num_blocks=6, max_context=24)
    add(scheduler, 0, 7, max_tokens=12)
    add(scheduler, 1, 7, max_tokens=12)
    add(scheduler, 2, 1, max_tokens=2)
    order: list[list[int]] = []
    while scheduler.has_work:
        order.append([request_id for request_id, _, _ in run_step(scheduler)])
    assert scheduler.totals.preemptions == 1
    first_of_2 = next(i for i, ids in enumerate(order) if 2 in ids)
    assert [1] not in order[:1]
    assert any(1 in ids for ids in order[:first_of_2])
    alone = [i for i, ids in enumerate(order) if ids == [0]]
    assert alone, "0 had the cache for itself"
    assert max(alone) < first_of_2, "2 did not overtake 1"


def test_the_oldest_is_never_preempted() -> None:
    scheduler = make(num_blocks=8, max_context=32)
    for i in range(4):
        add(scheduler, i, 4, max_tokens=28)
    computed = 0
    while any(chunk[0] == 0 for chunk in run_step(scheduler)):
        computed += 1
    assert computed == 28, "one token in each of its steps, without a restart"
    assert scheduler.totals.preemptions > 0


def test_two_steps_in_flight_do_not_plan_beyond_max_tokens() -> None:
    scheduler = make()
    add(scheduler, 0, 4, max_tokens=2)
    first = scheduler.schedule(0)
    second = scheduler.schedule(0)
    assert shape(second) == [(0, 4, 1)]
    assert second[0].source_row == 0
    assert scheduler.schedule(0) == []
    answer(scheduler, first)
    answer(scheduler, second)
    assert not scheduler.has_work


def test_a_result_that_comes_after_the_end_is_dropped() -> None:
    scheduler = make()
    sampling = SamplingParams(max_tokens=10)
    scheduler.add(request(0, range(4), sampling, eos_ids=(7,)), 0)
    first = scheduler.schedule(0)
    second = scheduler.schedule(0)
    answer(scheduler, first, token=7)
    assert not scheduler.has_work
    answer(scheduler, second, token=7)
    assert scheduler.totals.decode_tokens == 1
    assert scheduler.stats().blocks_used == 0


def test_a_preempted_sequence_takes_in_the_token_that_was_on_the_way() -> None:
    scheduler = make(num_blocks=4, max_context=16)
    add(scheduler, 0, 4, max_tokens=10)
    add(scheduler, 1, 4, max_tokens=10)
    chunks = scheduler.schedule(0)
    while scheduler.totals.preemptions == 0:
        following = scheduler.schedule(0)
        answer(scheduler, chunks)
        chunks = following
    answer(scheduler, chunks)
    resumed = scheduler.schedule(0)
    while not any(chunk.sequence.request.request_id == 1 for chunk in resumed):
        answer(scheduler, resumed)
        resumed = scheduler.schedule(0)
    (chunk,) = (chunk for chunk in resumed if chunk.sequence.request.request_id == 1)
    assert chunk.source_row == -1
    assert chunk.sequence.num_known == chunk.start + chunk.num_tokens


def test_a_sequence_preempted_while_its_draft_is_checked_gets_blocks_for_what_was_accepted() -> (
    None
):
    scheduler = make()
    sampling = SamplingParams(max_tokens=20, prompt_lookup_tokens=6)
    scheduler.add(request(0, range(7), sampling), 0)
    run_step(scheduler)
    (seq,) = scheduler.running
    assert seq.drafting is not None
    seq.waits, seq.drafting.tokens = True, np.full(6, 7, np.int32)
    checked = scheduler.schedule(0)
    scheduler._preempt(seq)
    again = scheduler.schedule(0)
    assert shape(again) == [(0, 4, 4)], "the first block was found again"
    answer(scheduler, checked)
    answer(scheduler, again)
    assert seq.num_known == 15
    assert run_step(scheduler) == [(0, 8, 7)]
    assert seq.num_blocks == 4


def test_the_context_is_what_the_cache_can_hold() -> None:
    scheduler = make(num_blocks=10, max_context=400)
    assert scheduler.max_context == 40
    add(scheduler, 0, 30, max_tokens=10)
    event = scheduler.add(request(1, range(31), SamplingParams(max_tokens=10)), 0)
    assert event is not None
    assert event.finish_reason is FinishReason.DIED
    assert "41 tokens; the context of the engine is 40" in str(event.error)


def test_a_request_as_long_as_the_cache_runs_alone_to_its_end() -> None:
    scheduler = make(num_blocks=10, max_context=40)
    add(scheduler, 0, 30, max_tokens=10)
    for _ in range(10):
        run_step(scheduler)
    assert not scheduler.has_work


def scoring(num_prompt: int, request_id: int) -> GenerateRequest:
    prompt = range(1000 * request_id, 1000 * request_id + num_prompt)
    return request(request_id, prompt, SamplingParams(max_tokens=1, prompt_logprobs=0))


def test_prompt_scoring_is_spread_over_steps() -> None:
    scheduler = make(replace(limits(), max_score_rows=5))
    scheduler.add(scoring(12, 0), 0)
    chunks = [scheduler.schedule(0) for _ in range(3)]
    assert [shape(each) for each in chunks] == [[(0, 0, 5)], [(0, 5, 5)], [(0, 10, 2)]]
    assert [each[0].num_scores for each in chunks] == [5, 5, 1]
    assert [each[0].samples for each in chunks] == [False, False, True]


def test_prompts_that_are_scored_share_the_rows_of_a_step() -> None:
    scheduler = make(replace(limits(), max_score_rows=5))
    scheduler.add(scoring(5, 0), 0)
    scheduler.add(scoring(5, 1), 0)
    first, second = scheduler.schedule(0), scheduler.schedule(0)
    assert shape(first) == [(0, 0, 5), (1, 0, 1)]
    assert shape(second) == [(1, 1, 4)]


def test_everything_ends_when_the_runner_fails() -> None:
    scheduler = make(limits(max_sequences=1))
    add(scheduler, 0, 4)
    add(scheduler, 1, 4)
    scheduler.schedule(0)
    events = scheduler.fail_all("broken", 0)
    assert [(e.request_id, e.finish_reason, e.error) for e in events] == [
        (0, FinishReason.DIED, "broken"),
        (1, FinishReason.DIED, "broken"),
    ]
    scheduler.check_integrity()
    assert scheduler.stats().blocks_used == 0


def test_a_budget_below_the_number_of_sequences_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"token budget of a step \(4\)"):
        limits(max_sequences=5, max_batched_tokens=4)
