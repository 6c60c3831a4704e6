"""Sections of reasoning: closed when their budget is spent, followed by what was asked for."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rocmforge.backend.arrays import UInt32Array
from rocmforge.engine.constraint.grammar import Grammars
from rocmforge.engine.constraint.thinking import ThinkingConstraint
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import FinishReason, SamplingParams, Thinking
from tests.support.fakes.fake_backend import FakeConfig, make_runner
from tests.unit.engine.constraint.test_grammar import PIECES, PIPELINES, VOCAB_SIZE, lark
from tests.unit.engine.helpers import Bench, Clock, limits, request

pytestmark = pytest.mark.slow

BEGIN, END, EOS = 264, 265, 262  # no text has these
BEGUN = Thinking(begin=BEGIN, end=END, is_begun=True)
POSSIBLE = Thinking(begin=BEGIN, end=END, is_begun=False)
DIGITS = lark("start: /[0-9]{5}/")
WORDS = -(-VOCAB_SIZE // 32)


def run(config: FakeConfig, **fields: object) -> list[list[int]]:
    """What six seeds give."""
    made = Bench(config)
    made.runner = make_runner(config, 4096, 8, 64)
    grammars = Grammars(PIECES, VOCAB_SIZE)
    made.core = EngineCore(made.runner, limits(), Clock(), grammars=grammars)
    base = SamplingParams(max_tokens=200)
    sampling = [msgspec.structs.replace(base, seed=i, **fields) for i in range(6)]
    results = made.run(*[request(i, [1, i], s, eos_ids=(EOS,)) for i, s in enumerate(sampling)])
    for result in results.values():
        assert result.last is not None
        assert result.last.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    return [result.token_ids for result in results.values()]


@PIPELINES
@pytest.mark.parametrize("prompt_lookup_tokens", [0, 4])
def test_a_section_is_closed_when_its_budget_is_spent(
    pipeline: FakeConfig, prompt_lookup_tokens: int
) -> None:
    thinking = Thinking(begin=BEGIN, end=END, is_begun=True, budget=7)
    for tokens in run(pipeline, thinking=thinking, prompt_lookup_tokens=prompt_lookup_tokens):
        assert END in tokens[:8] or EOS in tokens[:8]


@PIPELINES
@pytest.mark.parametrize("prompt_lookup_tokens", [0, 4])
@pytest.mark.parametrize("budget", [0, 1, 9])
def test_the_answer_behind_a_section_follows_its_grammar(
    pipeline: FakeConfig, prompt_lookup_tokens: int, budget: int
) -> None:
    thinking = Thinking(begin=BEGIN, end=END, is_begun=True, budget=budget)
    for tokens in run(
        pipeline, thinking=thinking, grammar=DIGITS, prompt_lookup_tokens=prompt_lookup_tokens
    ):
        end = tokens.index(END)
        assert end <= budget
        answer = b"".join(PIECES.pieces[token] for token in tokens[end + 1 : -1])
        assert answer.isdigit()
        assert len(answer) == 5
        assert tokens[-1] == EOS


def test_a_model_may_answer_without_thinking() -> None:
    constraint = ThinkingConstraint(
        POSSIBLE, Grammars(PIECES, VOCAB_SIZE).matcher(DIGITS), (EOS,), WORDS
    )
    assert {*allowed(constraint)} == {BEGIN, *range(ord("0"), ord("9") + 1), 261}
    assert constraint.advance(ord("4"))
    assert BEGIN not in allowed(constraint)


def test_a_model_may_think_first() -> None:
    constraint = ThinkingConstraint(
        POSSIBLE, Grammars(PIECES, VOCAB_SIZE).matcher(DIGITS), (EOS,), WORDS
    )
    assert constraint.advance(BEGIN)
    assert EOS not in allowed(constraint)
    assert ord("x") in allowed(constraint)
    assert constraint.advance(ord("x"))
    assert constraint.advance(END)
    assert ord("x") not in allowed(constraint)
    assert not constraint.advance(ord("x"))
    assert constraint.error


def test_without_a_grammar_nothing_else_is_forbidden() -> None:
    constraint = ThinkingConstraint(BEGUN, None, (EOS,), WORDS)
    for token in (5, END, 6):
        assert len(allowed(constraint)) == WORDS * 32
        assert constraint.advance(token)


def test_drafts_stay_within_a_section() -> None:
    constraint = ThinkingConstraint(
        Thinking(begin=BEGIN, end=END, is_begun=True, budget=3), None, (EOS,), WORDS
    )
    assert constraint.count_allowed(np.array([1, 2, 3, 4], np.int32)) == 3
    assert constraint.count_allowed(np.array([1, END, 3], np.int32)) == 1
    masks = np.zeros((4, WORDS), np.uint32)
    constraint.fill_ahead(masks, np.array([1, 2, 3], np.int32))
    assert [len(tokens(mask)) for mask in masks] == [WORDS * 32] * 3 + [1]


def allowed(constraint: ThinkingConstraint) -> list[int]:
    mask = np.zeros(WORDS, np.uint32)
    constraint.fill(mask)
    return tokens(mask)


def tokens(mask: UInt32Array) -> list[int]:
    found: list[int] = np.flatnonzero(
        np.unpackbits(mask.view(np.uint8), bitorder="little")
    ).tolist()
    return found
