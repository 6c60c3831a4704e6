"""Constrained sequences in the engine: whatever else happens, the output matches its grammar."""

from __future__ import annotations

import gc
import json
import string
import sys
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from msgspec import structs

from rocmforge.backend.arrays import UInt32Array
from rocmforge.engine.constraint.grammar import Compiled, Grammars, Matcher
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import FinishReason, SamplingParams, TokenPieces
from rocmforge.errors import EngineError
from tests.support.fakes.fake_backend import FakeConfig, FakeRunner, make_runner
from tests.unit.engine.helpers import Bench, Clock, Result, limits, request

WORDS = ("alpha", "beta", '{"', '":', '"}', "12")
PIECES = TokenPieces(
    pieces=(*(bytes([byte]) for byte in range(256)), *(w.encode() for w in WORDS), b"<end>"),
    special_ids=(262,),
    eos_ids=(262,),
)
VOCAB_SIZE = 270  # more logits than tokens, as padded models have


def lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


LETTERS = lark("start: /[a-z]{12,30};/")


def bench(config: FakeConfig, max_sequences: int = 8) -> Bench:
    made = Bench(config, limits(max_sequences=max_sequences))
    made.runner = make_runner(config, 4096, max_sequences, 64)
    grammars = Grammars(PIECES, VOCAB_SIZE)
    made.core = EngineCore(made.runner, limits(max_sequences), Clock(), grammars=grammars)
    return made


def sampling(grammar: str, seed: int = 0, max_tokens: int = 40) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=seed, grammar=grammar)


def mask(matcher: Matcher) -> UInt32Array:
    words = np.zeros(-(-VOCAB_SIZE // 32), np.uint32)
    matcher.fill(words)
    return words


def text(result: Result) -> str:
    return b"".join(PIECES.pieces[token] for token in result.token_ids).decode()


def assert_letters(result: Result) -> None:
    said = text(result)
    assert said.endswith(";<end>")
    letters = said.removesuffix(";<end>")
    assert 12 <= len(letters) <= 30
    assert set(letters) <= set(string.ascii_lowercase)
    assert result.last is not None
    assert result.last.finish_reason is FinishReason.STOP


PIPELINES = pytest.mark.parametrize(
    "pipeline",
    [
        FakeConfig(vocab_size=VOCAB_SIZE),
        FakeConfig(vocab_size=VOCAB_SIZE, pipeline_depth=2),
        FakeConfig(vocab_size=VOCAB_SIZE, pipeline_depth=2, masks_late=True),
    ],
    ids=["one at a time", "masks at once", "masks late"],
)


@PIPELINES
def test_outputs_match_whatever_the_pipeline(pipeline: FakeConfig) -> None:
    results = bench(pipeline).run(
        *[request(i, [1, 2, i], sampling(LETTERS, i), eos_ids=(262,)) for i in range(6)]
    )
    for result in results.values():
        assert_letters(result)


def test_the_pipeline_changes_no_token() -> None:
    requests = [request(i, [1, i], sampling(LETTERS, i), eos_ids=(262,)) for i in range(4)]
    requests.append(request(9, [5], SamplingParams(max_tokens=30)))
    said = []
    for depth, late in ((1, False), (2, False), (2, True)):
        config = FakeConfig(pipeline_depth=depth, masks_late=late, vocab_size=VOCAB_SIZE)
        results = bench(config).run(*requests)
        said.append({i: result.token_ids for i, result in results.items()})
    assert said[0] == said[1] == said[2]


def test_with_late_masks_constrained_sequences_draw_in_every_step() -> None:
    config = FakeConfig(pipeline_depth=2, masks_late=True, vocab_size=VOCAB_SIZE)
    made = bench(config)
    made.run(request(0, [1], sampling(lark('start: "alphabeta" /[0-9]{30}/')), eos_ids=(262,)))
    assert made.stats.totals.decode_tokens >= 20
    assert made.stats.totals.steps <= made.stats.totals.decode_tokens + 1


@PIPELINES
def test_preemption_does_not_lose_the_place_in_the_grammar(pipeline: FakeConfig) -> None:
    tight = replace(pipeline, block_size=4, num_blocks=11)
    made = bench(tight)
    results = made.run(
        *[request(i, [7, i], sampling(LETTERS, i), eos_ids=(262,)) for i in range(5)]
    )
    assert made.stats.totals.preemptions > 0
    for result in results.values():
        assert_letters(result)


def test_a_finished_grammar_allows_only_the_end() -> None:
    grammar = lark('start: "12"')
    results = bench(FakeConfig(vocab_size=VOCAB_SIZE)).run(
        request(0, [1], sampling(grammar), eos_ids=(262,))
    )
    assert text(results[0]) == "12<end>"


def test_special_tokens_are_no_text_and_padding_is_never_drawn() -> None:
    matcher = Grammars(PIECES, VOCAB_SIZE).matcher(lark(r"start: /(?s:.)+/"))
    words = mask(matcher)
    allowed = [t for t in range(len(words) * 32) if words[t // 32] >> (t % 32) & 1]
    assert max(allowed) < 262
    assert 256 in allowed


def test_a_cut_output_ends_with_length() -> None:
    results = bench(FakeConfig(vocab_size=VOCAB_SIZE)).run(
        request(0, [1], sampling(LETTERS, max_tokens=3), eos_ids=(262,))
    )
    last = results[0].last
    assert last is not None
    assert last.finish_reason is FinishReason.LENGTH


def test_a_token_outside_the_grammar_ends_that_request_alone() -> None:
    class Careless(FakeRunner):
        """Draws what it likes."""

        def _draw(self, step, states):  # type: ignore[no-untyped-def]
            return super()._draw(step, states) * 0 + 33

    made = bench(FakeConfig(vocab_size=VOCAB_SIZE))
    careless = Careless(FakeConfig(vocab_size=VOCAB_SIZE), 4096, 8, 64)
    made.core = EngineCore(careless, limits(), Clock(), grammars=Grammars(PIECES, VOCAB_SIZE))
    results = made.run(
        request(0, [1], sampling(LETTERS), eos_ids=(262,)),
        request(1, [1], SamplingParams(max_tokens=4)),
    )
    constrained, free = results[0].last, results[1].last
    assert constrained is not None
    assert constrained.finish_reason is FinishReason.ERROR
    assert "grammar" in (constrained.error or "")
    assert free is not None
    assert free.finish_reason is FinishReason.LENGTH


def test_a_grammar_that_does_not_compile_is_an_error() -> None:
    with pytest.raises(EngineError, match="does not compile"):
        Grammars(PIECES, VOCAB_SIZE).matcher(lark("start: missing"))


def test_matchers_of_one_grammar_are_independent() -> None:
    grammars = Grammars(PIECES, VOCAB_SIZE)
    first, second = grammars.matcher(LETTERS), grammars.matcher(LETTERS)
    before = mask(second)
    assert first.advance(ord("a"))
    assert not first.advance(ord("!"))
    assert (mask(second) == before).all()


def test_a_vocabulary_is_freed_with_the_last_that_uses_it() -> None:
    piece = b"a piece of this test alone"
    pieces = structs.replace(PIECES, pieces=(*PIECES.pieces[:-1], piece))
    before = sys.getrefcount(piece)
    matcher = Grammars(pieces, VOCAB_SIZE).matcher(LETTERS)
    gc.collect()
    assert sys.getrefcount(piece) > before
    assert matcher.advance(ord("a"))

    del matcher
    gc.collect()
    assert sys.getrefcount(piece) == before


@PIPELINES
@pytest.mark.parametrize("call", ["fill", "count_allowed", "advance"])
def test_a_matcher_that_raises_fails_its_own_request_only(
    call: str, pipeline: FakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = lark("start: /[a-z]{12,30}!/")
    made = Grammars.begin
    others = [request(i, [1, 2, i], sampling(LETTERS, i), eos_ids=(262,)) for i in range(3)]
    alone = bench(pipeline).run(*others)

    def begin(self: Grammars, compiled: Compiled) -> Matcher:
        found = made(self, compiled)
        if compiled is self.compile(broken):
            monkeypatch.setattr(found, call, Mock(side_effect=RuntimeError("planted")))
        return found

    monkeypatch.setattr(Grammars, "begin", begin)
    drafted = structs.replace(sampling(broken), prompt_lookup_tokens=4)
    repeats = [97, 98, 97, 98, 97, 98]
    together = bench(pipeline).run(*others, request(9, repeats, drafted, eos_ids=(262,)))
    failed = together.pop(9).last
    assert failed is not None
    assert failed.finish_reason is FinishReason.ERROR
    assert "RuntimeError: planted" in (failed.error or "")
    for number, result in together.items():
        assert_letters(result)
        assert result.token_ids == alone[number].token_ids
