"""Grammars that take long to compile hold up nobody but their own requests."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import llguidance
import pytest

from rocmforge.engine.constraint.grammar import Grammars
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.messages import Cancel
from rocmforge.engine.ipc.params import FinishReason, SamplingParams
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.constraint.test_grammar import LETTERS, PIECES, VOCAB_SIZE, assert_letters
from tests.unit.engine.helpers import Bench, limits, request

END = (262,)
FREE = SamplingParams(max_tokens=5)
CONSTRAINED = SamplingParams(max_tokens=40, grammar=LETTERS)


class SlowGrammars(Grammars):
    """Compiles nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__(PIECES, VOCAB_SIZE)
        self.go = Event()

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        self.go.wait()
        return super()._compile(grammar)


@pytest.fixture
def grammars() -> Iterator[SlowGrammars]:
    grammars = SlowGrammars()
    yield grammars
    grammars.go.set()


@pytest.fixture
def bench(grammars: SlowGrammars) -> Bench:
    made = Bench(FakeConfig(vocab_size=VOCAB_SIZE))
    made.core = EngineCore(made.runner, limits(), made.clock, grammars=grammars)
    return made


def test_others_are_served_while_a_grammar_is_compiled(
    bench: Bench, grammars: SlowGrammars
) -> None:
    bench.submit(request(0, [1], CONSTRAINED, eos_ids=END), request(1, [2, 3], FREE))
    for _ in range(5):
        bench.step()
    assert bench.results[1].token_ids == continuation([2, 3], 5, vocab_size=VOCAB_SIZE)
    assert bench.results[0].token_ids == []
    assert bench.core.has_work
    grammars.go.set()
    assert_letters(bench.finish()[0])


def test_a_request_may_be_cancelled_before_its_grammar_is_there(bench: Bench) -> None:
    bench.submit(request(0, [1], CONSTRAINED, eos_ids=END))
    bench.step(Cancel(request_id=0))
    last = bench.results[0].last
    assert last is not None
    assert last.finish_reason is FinishReason.CANCELLED
    assert not bench.core.has_work


def test_a_deadline_passes_before_the_grammar_is_there(bench: Bench) -> None:
    bench.submit(request(0, [1], CONSTRAINED, eos_ids=END, deadline_ns=bench.clock.now_ns + 3))
    for _ in range(3):
        bench.step()
    last = bench.results[0].last
    assert last is not None
    assert last.finish_reason is FinishReason.DEADLINE
    assert not bench.core.has_work


def test_a_failing_engine_tells_those_that_wait_for_a_grammar(bench: Bench) -> None:
    bench.submit(request(0, [1], CONSTRAINED, eos_ids=END))
    (event,) = bench.core.fail("no device").events
    assert event.finish_reason is FinishReason.DIED
    assert event.error == "no device"


def test_a_grammar_is_compiled_once_for_all_its_requests(
    bench: Bench, grammars: SlowGrammars
) -> None:
    assert grammars.compile(LETTERS) is grammars.compile(LETTERS)
    grammars.go.set()
    results = bench.run(*[request(i, [1, i], CONSTRAINED, eos_ids=END) for i in range(3)])
    for result in results.values():
        assert_letters(result)
