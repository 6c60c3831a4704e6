"""Grammars of megabytes: sent once however many requests use them, and not kept when none does."""

from __future__ import annotations

import asyncio
import os
import signal
import tracemalloc
import weakref
from dataclasses import replace

import pytest

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.engine_process import EngineProcess
from rocmforge.engine.client.handle import GenerationHandle
from rocmforge.engine.constraint.grammar import Grammars
from rocmforge.engine.constraint.grammar_checker import GrammarChecker
from rocmforge.engine.ipc.grammar_name import grammar_name
from rocmforge.engine.ipc.messages import Command, ForgetGrammar
from rocmforge.engine.ipc.params import SamplingParams, TokenEvent, TokenPieces
from rocmforge.engine.ipc.wire import encode
from rocmforge.errors import EngineError
from tests.support.engine.engine_client import Engine, config, read, restarted, run, tokens
from tests.unit.engine.constraint.test_grammar import PIECES, VOCAB_SIZE, lark
from tests.unit.engine.helpers import request

pytestmark = pytest.mark.slow

END = (262,)
MEBI = 1 << 20
UNUSED = range(len(PIECES.pieces), 1000)
VOCABULARY = TokenPieces(
    pieces=(*PIECES.pieces, *(b"<unused %d>" % token for token in UNUSED)),
    special_ids=(*PIECES.special_ids, *UNUSED),
    eos_ids=PIECES.eos_ids,
)


def padded(size: int, rule: str = "/[a-z]{12,30};/") -> str:
    """A grammar of about so many characters."""
    return lark(f"// {'x' * size}\nstart: {rule}")


def chosen(variant: str = "create") -> EngineConfig:
    return replace(config(variant), vocabulary=VOCABULARY)


def sampling(grammar: str, seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=60, grammar=grammar, seed=seed)


def submit(engine: AsyncEngine, grammar: str, seed: int) -> GenerationHandle:
    return engine.submit(request(0, [1, seed], sampling(grammar, seed), eos_ids=END))


def said(events: list[TokenEvent]) -> str:
    return b"".join(PIECES.pieces[token] for token in tokens(events)).decode()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """What engine processes are sent."""
    commands: list[Command] = []
    send = EngineProcess.send

    def record(self: EngineProcess, command: Command) -> None:
        commands.append(command)
        send(self, command)

    monkeypatch.setattr(EngineProcess, "send", record)
    return commands


def test_many_choices_of_one_request_send_its_grammar_once(sent: list[Command]) -> None:
    async def test() -> None:
        async with Engine(chosen()) as engine:
            for grammar in (padded(2 * MEBI), padded(2 * MEBI, "/[0-9]{12,30};/")):
                before = len(sent)
                handles = [submit(engine, grammar, i) for i in range(16)]
                answers = await asyncio.gather(*map(read, handles))
                assert all(said(events).endswith(";<end>") for events in answers)
                assert sum(len(encode(command)) for command in sent[before:]) < 3 * MEBI
                assert sent[-1] == ForgetGrammar(name=grammar_name(grammar))

    run(test())


def test_a_client_that_leaves_takes_its_grammar_along(sent: list[Command]) -> None:
    async def test() -> None:
        async with Engine(chosen("create_slow")) as engine:
            grammar = padded(MEBI)
            handles = [submit(engine, grammar, i) for i in range(2)]
            forget = ForgetGrammar(name=grammar_name(grammar))
            handles[0].close()
            assert forget not in sent
            handles[1].close()
            assert forget in sent

    run(test())


def test_a_new_process_is_told_of_the_grammars_that_it_goes_on_with() -> None:
    async def begin(handle: GenerationHandle) -> list[TokenEvent]:
        return list(await handle.next())

    async def test() -> None:
        async with Engine(replace(chosen("create_slow"), resume=True)) as engine:
            grammar = padded(MEBI)
            handles = [submit(engine, grammar, i) for i in range(4)]
            begun = [await begin(handle) for handle in handles]
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            for events, handle in zip(begun, handles, strict=True):
                assert said(events + await read(handle)).endswith(";<end>")
            await restarted(engine, 1)

    run(test())


def test_a_name_without_a_text_is_an_error() -> None:
    grammars = Grammars(PIECES, VOCAB_SIZE)
    name = grammar_name(padded(10))
    grammars.define(name, padded(10))
    grammars.forget(name)
    with pytest.raises(EngineError, match="does not compile"):
        grammars.matcher(name)


def test_what_is_compiled_is_kept_within_bounds() -> None:
    grammars = Grammars(PIECES, VOCAB_SIZE)
    small = padded(10)
    kept = grammars.compile(small)
    large = [weakref.ref(grammars.compile(padded(6 * MEBI + i))) for i in range(6)]
    grammars.matcher(small)  # the others have been compiled then: one thread does them in order
    assert sum(each() is not None for each in large) <= 2
    kept.result()


def test_the_checker_remembers_what_it_found_and_not_the_texts() -> None:
    checker = GrammarChecker()
    try:
        checker.problem(padded(10))
        tracemalloc.start()
        for i in range(10):
            assert checker.problem(padded(MEBI + i)) == ""
        held, _ = tracemalloc.get_traced_memory()
        assert held < MEBI
    finally:
        tracemalloc.stop()
        checker.close()
