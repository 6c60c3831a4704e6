"""Models with states: who holds which slot, and that every sequence goes on from its own state.

The fake runner keeps a checksum of tokens in each slot and refuses a step that goes on from others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from rocmforge.backend.step import MAX_KEPT_STATES
from rocmforge.engine.cache.state_slots import StateSlots
from rocmforge.engine.ipc.messages import Cancel
from rocmforge.engine.ipc.params import FinishReason, SamplingParams
from tests.backend.driving import Chunk, make_step
from tests.support.fakes.fake_backend import FakeConfig, FakeMistake
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.helpers import Bench, limits, request

STATES = FakeConfig(block_size=4, num_blocks=64, max_context=256, num_slots=4)
FOUR = limits(max_sequences=4, max_batched_tokens=16)


def prompt(number: int, length: int) -> list[int]:
    return list(range(100 * number, 100 * number + length))


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=12),
    st.integers(20, 64),
    st.integers(1, 2),
    st.data(),
)
@settings(max_examples=30)
def test_every_sequence_goes_on_from_its_own_state(
    sizes: list[tuple[int, int]], num_blocks: int, depth: int, data: st.DataObject
) -> None:
    config = replace(STATES, num_blocks=num_blocks, max_context=96, pipeline_depth=depth)
    bench = Bench(config, FOUR)
    sizes = [size for size in sizes if sum(size) <= 4 * num_blocks]
    assume(sizes)
    cancelled = data.draw(st.sets(st.integers(0, 11)))
    for number, (length, tokens) in enumerate(sizes):
        bench.submit(request(number, prompt(number, length), SamplingParams(max_tokens=tokens)))
        if number - 1 in cancelled and bench.results[number - 1].last is None:
            bench.step(Cancel(number - 1))
    results = bench.finish()
    assert bench.stats.slots_used == 0
    for number, (length, tokens) in enumerate(sizes):
        last = results[number].last
        assert last is not None
        if last.finish_reason is not FinishReason.CANCELLED:
            expected = continuation(prompt(number, length), tokens)
            assert results[number].token_ids == expected


def test_a_preempted_sequence_gives_its_slot_back_and_begins_again() -> None:
    bench = Bench(replace(STATES, num_blocks=10), FOUR)
    for number in range(2):
        bench.submit(request(number, prompt(number, 12), SamplingParams(max_tokens=20)))
    results = bench.finish()
    assert bench.stats.totals.preemptions
    for number in range(2):
        assert results[number].token_ids == continuation(prompt(number, 12), 20)


def test_a_sequence_without_a_slot_waits() -> None:
    bench = Bench(replace(STATES, num_slots=2), FOUR)
    for number in range(3):
        bench.submit(request(number, prompt(number, 4), SamplingParams(max_tokens=8)))
    assert (bench.stats.running, bench.stats.waiting) == (2, 1)
    assert (bench.stats.slots_used, bench.stats.slots_total) == (2, 2)
    bench.finish()


def test_without_room_for_snapshots_no_prefix_is_reused() -> None:
    bench = Bench(STATES, FOUR)
    for number in range(2):
        last = bench.run(request(number, prompt(1, 20), SamplingParams(max_tokens=4)))[number].last
        assert last is not None
        assert last.cached_tokens == 0


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=9),
    st.integers(24, 64),
    st.integers(1, 2),
    st.integers(1, 12),
    st.sampled_from([0, 3]),
    st.data(),
)
@settings(max_examples=30)
def test_sequences_go_on_from_the_states_after_their_last_accepted_draft_token(
    sizes: list[tuple[int, int]],
    num_blocks: int,
    depth: int,
    between: int,
    snapshots: int,
    data: st.DataObject,
) -> None:
    """Of three in four draft tokens, with preemption, and more of them than slots for states."""
    plain = replace(STATES, num_blocks=num_blocks, max_context=128, pipeline_depth=depth)
    config = replace(plain, num_slots=4 + between, snapshots=snapshots)
    draft = replace(plain, num_slots=0, wrong_one_in=4)
    bench = Bench(config, FOUR, draft=draft)
    sizes = [size for size in sizes if sum(size) <= 4 * num_blocks]
    assume(sizes)
    cancelled = data.draw(st.sets(st.integers(0, 8)))
    for number, (length, tokens) in enumerate(sizes):
        sampling = SamplingParams(max_tokens=tokens, draft_model_tokens=4)
        bench.submit(request(number, prompt(number % 2, length), sampling))
        if number - 1 in cancelled and bench.results[number - 1].last is None:
            bench.step(Cancel(number - 1))
    results = bench.finish()
    assert bench.stats.slots_used == 0
    for number, (length, tokens) in enumerate(sizes):
        last = results[number].last
        assert last is not None
        if last.finish_reason is not FinishReason.CANCELLED:
            expected = continuation(prompt(number % 2, length), tokens)
            assert results[number].token_ids == expected


def test_states_between_draft_tokens_save_steps() -> None:
    config = replace(STATES, num_slots=8)
    bench = Bench(config, FOUR, draft=replace(STATES, num_slots=0))
    bench.run(request(0, prompt(1, 9), SamplingParams(max_tokens=60, draft_model_tokens=4)))
    totals = bench.stats.totals
    assert totals.model_accepted_tokens == totals.model_drafted_tokens > 40
    assert totals.steps == 60 - totals.model_accepted_tokens


@pytest.mark.parametrize("field", ["prompt_lookup_tokens", "draft_model_tokens"])
def test_drafts_are_refused_without_slots_for_their_states(field: str) -> None:
    bench = Bench(STATES, FOUR)
    sampling = structs.replace(SamplingParams(max_tokens=4), **{field: 2})
    last = bench.run(request(0, prompt(0, 4), sampling))[0].last
    assert last is not None
    assert (last.finish_reason, last.error) == (
        FinishReason.ERROR,
        "The model cannot check draft tokens.",
    )


def test_a_model_without_states_has_no_slots() -> None:
    bench = Bench(replace(STATES, num_slots=0), FOUR)
    bench.run(request(0, prompt(0, 4), SamplingParams(max_tokens=2)))
    assert bench.stats.slots_total == 0


def test_the_fake_runner_refuses_the_state_of_a_neighbour() -> None:
    bench = Bench(STATES, FOUR)
    for number in range(2):
        bench.submit(request(number, prompt(number, 4), SamplingParams(max_tokens=8)))
    first, second = bench.core._scheduler.running
    first.states, second.states = second.states, first.states
    with pytest.raises(FakeMistake, match="the state in slot"):
        bench.step()


@pytest.mark.parametrize(
    ("tokens", "reads", "writes", "reason"),
    [
        (3, [], [-1, -1, 0, 1], "written, but not read"),
        (3, [0], [-1, -1, 0, 1], "a slot to read for each"),
        (3, [0, 1], [-1, -1, 0], "a slot to write, or none"),
        (3, [0, 1], [0, 2, -1, 1], "the last states"),
        (3, [0, 1], [0, -1, 2, 1], "before it is read"),
        (MAX_KEPT_STATES + 1, [0, 1], [2, *[-1] * (MAX_KEPT_STATES - 1), 0, 1], "between many"),
    ],
)
def test_a_step_with_states_where_no_kernel_keeps_them_cannot_be_made(
    tokens: int, reads: list[int], writes: list[int], reason: str
) -> None:
    chunks = [Chunk(tokens=[5] * tokens, start=4, blocks=[0]), Chunk(tokens=[5], blocks=[1])]
    step = make_step(0, chunks, 64)
    with pytest.raises(AssertionError, match=reason):
        replace(
            step, state_reads=np.array(reads, np.int32), state_writes=np.array(writes, np.int32)
        )


@pytest.mark.parametrize("held", [[0, 0], [0], [0, 4]])
def test_slots_held_twice_or_lost_are_found(held: list[int]) -> None:
    slots = StateSlots(3)
    assert [slots.take(), slots.take()] == [0, 1]
    slots.check_integrity([0, 1])
    with pytest.raises(AssertionError, match="state slots"):
        slots.check_integrity(held)
