"""Embeddings are pooled from the right hidden states, however a prompt is cut into steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.engine.ipc.params import FinishReason, Pooling, SamplingParams
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import hidden_states
from tests.unit.engine.helpers import Bench, limits, request

KINDS = st.sampled_from(list(Pooling))
PROMPTS = st.lists(st.integers(0, 20), min_size=1, max_size=40)


def pooled(prompt: list[int], kind: Pooling) -> Any:
    states = hidden_states(np.array(prompt, np.int32))
    match kind:
        case Pooling.MEAN:
            return states.mean(axis=0)
        case Pooling.CLS:
            return states[0]
        case Pooling.LAST:
            return states[-1]


def embedding(bench: Bench, request_id: int) -> Any:
    last = bench.results[request_id].last
    assert last is not None
    assert last.finish_reason is FinishReason.LENGTH
    assert last.embedding is not None
    return np.frombuffer(last.embedding, np.float32)


@given(
    prompts=st.lists(st.tuples(PROMPTS, KINDS), min_size=1, max_size=6),
    depth=st.sampled_from([1, 2]),
    budget=st.integers(4, 64),
    num_blocks=st.integers(12, 40),
)
def test_every_prompt_gets_its_own_states_pooled(
    prompts: list[tuple[list[int], Pooling]], depth: int, budget: int, num_blocks: int
) -> None:
    config = FakeConfig(pipeline_depth=depth, block_size=4, num_blocks=num_blocks)
    bench = Bench(config, limits(max_sequences=4, max_batched_tokens=budget))
    bench.run(
        *[
            request(i, prompt, SamplingParams(max_tokens=0, pooling=kind))
            for i, (prompt, kind) in enumerate(prompts)
        ]
    )
    for i, (prompt, kind) in enumerate(prompts):
        np.testing.assert_allclose(embedding(bench, i), pooled(prompt, kind), rtol=1e-5)


@pytest.mark.parametrize("kind", list(Pooling))
def test_a_cached_prefix_does_not_hide_states(kind: Pooling) -> None:
    prompt = list(range(40))
    bench = Bench(FakeConfig(block_size=4))
    bench.run(request(0, prompt, SamplingParams(max_tokens=2)))
    bench.run(request(1, prompt, SamplingParams(max_tokens=0, pooling=kind)))
    np.testing.assert_allclose(embedding(bench, 1), pooled(prompt, kind), rtol=1e-5)
    last = bench.results[1].last
    assert last is not None
    assert (last.cached_tokens > 0) == (kind is Pooling.LAST)


def test_embeddings_and_generation_share_steps_and_preemption() -> None:
    config = FakeConfig(pipeline_depth=2, block_size=4, num_blocks=12)
    alone, crowded = Bench(config), Bench(config, limits(max_sequences=4, max_batched_tokens=8))
    prompt = list(range(30))
    speaker = request(0, [1, 2, 3], SamplingParams(max_tokens=40))
    alone.run(speaker)
    crowded.run(speaker, request(1, prompt, SamplingParams(max_tokens=0, pooling=Pooling.MEAN)))
    assert crowded.results[0].token_ids == alone.results[0].token_ids
    np.testing.assert_allclose(embedding(crowded, 1), pooled(prompt, Pooling.MEAN), rtol=1e-5)


def test_an_embedding_can_be_cancelled_between_its_steps() -> None:
    bench = Bench(FakeConfig(block_size=4), limits(max_batched_tokens=8))
    bench.submit(request(0, [1] * 30, SamplingParams(max_tokens=0, pooling=Pooling.MEAN)))
    event = bench.core._scheduler.cancel(0, 5)
    assert event is not None
    assert event.finish_reason is FinishReason.CANCELLED
    bench.core.check_integrity()
