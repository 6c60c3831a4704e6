"""Prompts of encoders are computed whole, and need no blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.messages import Cancel
from rocmforge.engine.ipc.params import (
    FinishReason,
    GenerateRequest,
    Pooling,
    SamplingParams,
    TokenEvent,
)
from tests.support.fakes.fake_encoder import FakeEncoder, encoder_states
from tests.unit.engine.helpers import limits, request

PROMPTS = st.lists(st.integers(0, 20), min_size=1, max_size=24)


def core_with(budget: int = 64, depth: int = 1, sequences: int = 4) -> EngineCore:
    runner = FakeEncoder(max_context=512, pipeline_depth=depth)
    chosen = limits(max_sequences=sequences, max_batched_tokens=budget)
    return EngineCore(runner, chosen, lambda: 1)


def finish(core: EngineCore, *commands: GenerateRequest | Cancel) -> dict[int, TokenEvent]:
    """The last event of each request."""
    events = [*core.step(commands).events]
    while core.has_work:
        events += core.step().events
        core.check_integrity()
    return {event.request_id: event for event in events if event.finish_reason is not None}


def embedding_of(number: int, prompt: list[int], kind: Pooling = Pooling.MEAN) -> GenerateRequest:
    return request(number, prompt, SamplingParams(max_tokens=0, pooling=kind))


@given(
    prompts=st.lists(st.tuples(PROMPTS, st.sampled_from(list(Pooling))), min_size=1, max_size=9),
    depth=st.sampled_from([1, 2]),
    budget=st.integers(24, 80),
    sequences=st.integers(1, 5),
)
def test_every_prompt_gets_its_own_states_pooled(
    prompts: list[tuple[list[int], Pooling]], depth: int, budget: int, sequences: int
) -> None:
    core = core_with(budget, depth, sequences)
    last = finish(core, *[embedding_of(i, *prompt) for i, prompt in enumerate(prompts)])
    for number, (prompt, kind) in enumerate(prompts):
        states = encoder_states(np.array(prompt))
        expected = {
            Pooling.MEAN: states.mean(axis=0),
            Pooling.CLS: states[0],
            Pooling.LAST: states[-1],
        }[kind]
        assert last[number].finish_reason is FinishReason.LENGTH
        found = np.frombuffer(last[number].embedding or b"", np.float32)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_equal_prompts_are_computed_again() -> None:
    core = core_with()
    for number in range(2):
        event = finish(core, embedding_of(number, [1] * 40))[number]
        assert event.cached_tokens == 0
    assert core.step().stats.blocks_cached == 0


def test_a_step_holds_as_many_prompts_as_fit() -> None:
    core = core_with(budget=64, sequences=8)
    finish(core, *[embedding_of(number, [number] * 20) for number in range(6)])
    assert core.step().stats.totals.steps == 2


def test_the_longest_prompt_is_what_a_step_holds() -> None:
    core = core_with(budget=24)
    assert core.max_context == 24
    last = finish(core, embedding_of(0, [1] * 24), embedding_of(1, [1] * 25))
    assert last[0].finish_reason is FinishReason.LENGTH
    assert last[1].finish_reason is FinishReason.DIED
    assert "25 tokens; the context of the engine is 24" in (last[1].error or "")


def test_tokens_are_refused() -> None:
    last = finish(core_with(), request(0, [1, 2], SamplingParams(max_tokens=3)))
    assert last[0].finish_reason is FinishReason.ERROR
    assert "generates no text" in (last[0].error or "")


@pytest.mark.parametrize("depth", [1, 2])
def test_a_cancelled_prompt_leaves_nothing_behind(depth: int) -> None:
    core = core_with(depth=depth)
    assert core.step([embedding_of(0, [1] * 5)]).events == () or depth == 1
    last = finish(core, Cancel(request_id=0), embedding_of(1, [2] * 5))
    assert last[1].finish_reason is FinishReason.LENGTH
    assert not core.has_work
