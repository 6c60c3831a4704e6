"""Prompt lookup: what it finds, and that draft tokens change only the number of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.engine.constraint.grammar import Grammars
from rocmforge.engine.draft.lookup import look_up
from rocmforge.engine.ipc.params import FinishReason, SamplingParams
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.constraint.test_grammar import PIECES, VOCAB_SIZE, lark
from tests.unit.engine.helpers import Bench, Result, limits, request

FEW = FakeConfig(vocab_size=2)  # of two tokens: draft tokens are often accepted
PIPELINES = pytest.mark.parametrize(
    "pipeline",
    [FakeConfig(), FakeConfig(pipeline_depth=2), FakeConfig(pipeline_depth=2, masks_late=True)],
    ids=["one at a time", "masks at once", "masks late"],
)


def find(tokens: list[int], count: int) -> list[int]:
    found: list[int] = look_up(np.array(tokens, np.int32), count).tolist()
    return found


@pytest.mark.parametrize(
    ("tokens", "count", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 2, [3, 4]),
        ([1, 2, 3, 4, 1, 2], 9, [3, 4, 1, 2]),
        ([7, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2], 1, [3]),  # three tokens match there
        ([1, 2, 3, 1, 2, 4, 1, 2], 2, [4, 1]),  # the last of two places
        ([5, 5, 5, 5], 3, [5]),
        ([1, 2, 3, -4, -5, 1, 2], 4, [3]),  # places of embeddings, no two alike, are no tokens
        ([1, 2, -3, -4, 1, 2], 4, []),
        ([-1, -2, 3, 4, -5, -6], 4, []),
        ([1, 2, 3], 3, []),
        ([1], 3, []),
        ([1, 2, 1, 2], 0, []),
    ],
)
def test_what_followed_before_is_found(tokens: list[int], count: int, expected: list[int]) -> None:
    assert find(tokens, count) == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 9))
def test_what_is_found_follows_an_earlier_copy_of_the_end(tokens: list[int], count: int) -> None:
    found = find(tokens, count)
    assert len(found) <= count
    if found:
        text = "".join(map(str, tokens))
        assert text[-2:] + "".join(map(str, found)) in text


@pytest.mark.parametrize("depth", [1, 2])
def test_accepted_tokens_save_steps(depth: int) -> None:
    config = replace(FEW, pipeline_depth=depth)
    prompt = [0, 1, 1, 0]
    steps = []
    for prompt_lookup_tokens in (0, 4):
        bench = Bench(config)
        sampling = SamplingParams(max_tokens=60, prompt_lookup_tokens=prompt_lookup_tokens)
        result = bench.run(request(0, prompt, sampling))[0]
        assert result.token_ids == continuation(prompt, 60, vocab_size=2)
        steps.append(bench.stats.totals.steps)
    stats = bench.stats
    assert 0 < stats.totals.accepted_tokens < stats.totals.drafted_tokens
    assert stats.totals.decode_tokens == 60
    assert steps[1] == steps[0] - stats.totals.accepted_tokens


@PIPELINES
def test_a_stop_token_ends_it_where_it_would_have(pipeline: FakeConfig) -> None:
    prompt = [0, 1, 0, 1, 1]
    config = replace(pipeline, vocab_size=3)
    expected = continuation(prompt, 40, vocab_size=3)
    for stop in (0, 1, 2):
        sampling = SamplingParams(max_tokens=40, prompt_lookup_tokens=5, stop_token_ids=(stop,))
        result = Bench(config).run(request(0, prompt, sampling))[0]
        assert result.token_ids == expected[: expected.index(stop) + 1]
        assert result.last is not None
        assert result.last.finish_reason is FinishReason.STOP


def test_min_tokens_holds_within_a_draft() -> None:
    prompt = [0, 1, 0, 1, 1]
    results = []
    for prompt_lookup_tokens in (0, 6):
        sampling = SamplingParams(
            max_tokens=40,
            min_tokens=9,
            prompt_lookup_tokens=prompt_lookup_tokens,
            stop_token_ids=(2,),
        )
        results.append(Bench(FakeConfig(vocab_size=3)).run(request(0, prompt, sampling))[0])
    assert results[0].token_ids == results[1].token_ids
    assert len(results[0].token_ids) > 9


@PIPELINES
def test_drafts_follow_a_grammar(pipeline: FakeConfig) -> None:
    grammar = lark('start: ("ab" | "ba" | "1"){20,40} ";"')
    config = replace(pipeline, vocab_size=VOCAB_SIZE, block_size=4, num_blocks=40)
    said: list[dict[int, list[int]]] = []
    accepted = 0
    for prompt_lookup_tokens in (0, 6):
        made = Bench(config, grammars=Grammars(PIECES, VOCAB_SIZE))
        results: dict[int, Result] = made.run(
            *[
                request(
                    i,
                    [1, 2, i],
                    SamplingParams(
                        max_tokens=90,
                        seed=i,
                        grammar=grammar,
                        prompt_lookup_tokens=prompt_lookup_tokens,
                    ),
                    eos_ids=(262,),
                )
                for i in range(6)
            ]
        )
        said.append({i: result.token_ids for i, result in results.items()})
        accepted = made.stats.totals.accepted_tokens
    assert said[0] == said[1]
    assert accepted > 0


def test_drafts_leave_room_for_everybody_else() -> None:
    config = replace(FEW, block_size=4, num_blocks=40)
    bench = Bench(config, limits(max_sequences=8, max_batched_tokens=8))
    results = bench.run(
        *[
            request(i, [0, 1, 0], SamplingParams(max_tokens=20, prompt_lookup_tokens=9))
            for i in range(8)
        ]
    )
    for result in results.values():
        assert result.token_ids == continuation([0, 1, 0], 20, vocab_size=2)


def test_a_nan_counts_only_where_the_draft_token_before_it_was_accepted() -> None:
    outcomes = []
    for prompt_lookup_tokens in (0, 5):
        bench = Bench(FakeConfig(vocab_size=4, nan_token=2))
        sampling = [
            SamplingParams(max_tokens=30, prompt_lookup_tokens=prompt_lookup_tokens, seed=i)
            for i in range(40)
        ]
        results = bench.run(*[request(i, [0, 1, 2, 3, 0, 1], s) for i, s in enumerate(sampling)])
        outcomes.append(
            [(r.token_ids, r.last.finish_reason) for r in results.values() if r.last is not None]
        )
    assert bench.stats.totals.drafted_tokens > 0
    # Tokens of the step that failed are lost with it.
    for (plain, why), (drafted, same) in zip(*outcomes, strict=True):
        assert why is same
        assert drafted == plain[: len(drafted)]
        assert drafted == plain or why is FinishReason.ERROR
