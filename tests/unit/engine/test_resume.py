"""A request that another engine goes on with gets the tokens it would have had anyway."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from rocmforge.engine.client.journal import Journal
from rocmforge.engine.ipc.params import (
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Thinking,
    TokenEvent,
)
from rocmforge.engine.ipc.status import EngineState
from rocmforge.errors import EngineDied
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.support.engine import engine_client as live
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.constraint.test_grammar import LETTERS, bench
from tests.unit.engine.constraint.test_thinking import BEGIN, END
from tests.unit.engine.helpers import Bench, request

pytestmark = pytest.mark.slow

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]
LENGTH = 12


def resumed(whole: GenerateRequest, generated: list[int]) -> GenerateRequest:
    return structs.replace(whole, generated_ids=tuple(generated))


@pytest.mark.parametrize("done", range(LENGTH))
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"num_logprobs": 2},
        {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25},
        {"min_tokens": 6, "stop_token_ids": (7,)},
    ],
    ids=["plain", "logprobs", "penalties", "min_tokens"],
)
def test_it_goes_on_where_it_was(done: int, extra: dict[str, object]) -> None:
    sampling = SamplingParams(max_tokens=LENGTH, seed=5, **extra)  # type: ignore[arg-type]
    whole = request(0, PROMPT, sampling)
    undisturbed = Bench().run(whole)[0]
    rest = Bench().run(resumed(whole, undisturbed.token_ids[:done]))[0]
    assert rest.token_ids == undisturbed.token_ids[done:]
    assert rest.logprobs == undisturbed.logprobs[done:]
    assert rest.last is not None
    assert undisturbed.last is not None
    assert rest.last.finish_reason == undisturbed.last.finish_reason


@pytest.mark.parametrize("done", [0, 1, 5, 11])
def test_so_does_one_that_is_bound_to_a_grammar(done: int) -> None:
    whole = request(0, PROMPT, SamplingParams(max_tokens=40, seed=3, grammar=LETTERS))
    whole = structs.replace(whole, eos_ids=(262,))
    config = FakeConfig(vocab_size=270)
    undisturbed = bench(config).run(whole)[0]
    assert len(undisturbed.token_ids) > 11
    rest = bench(config).run(resumed(whole, undisturbed.token_ids[:done]))[0]
    assert rest.token_ids == undisturbed.token_ids[done:]


@pytest.mark.parametrize("done", range(14))
@pytest.mark.parametrize("budget", [4, 9, None])
@pytest.mark.parametrize("grammar", ["", LETTERS])
def test_so_does_one_that_thinks_first(grammar: str, budget: int | None, done: int) -> None:
    """Cut within the thoughts, at their end, and behind it."""
    thinking = Thinking(begin=BEGIN, end=END, is_begun=True, budget=budget)
    wanted = SamplingParams(max_tokens=60, seed=4, grammar=grammar, thinking=thinking)
    whole = structs.replace(request(0, PROMPT, wanted), eos_ids=(262,))
    config = FakeConfig(vocab_size=270)
    undisturbed = bench(config).run(whole)[0]
    assert len(undisturbed.token_ids) > done
    rest = bench(config).run(resumed(whole, undisturbed.token_ids[:done]))[0]
    assert rest.token_ids == undisturbed.token_ids[done:]


def test_what_got_no_further_is_not_tried_again() -> None:
    journal = Journal()
    journal.open(request(0, PROMPT, SamplingParams(max_tokens=9)))
    assert journal.can_resume(0)
    assert [r.generated_ids for r in journal.resume()] == [()]
    assert not journal.can_resume(0)
    journal.note(TokenEvent(request_id=0, token_ids=(4, 2)))
    assert journal.can_resume(0)
    assert [r.generated_ids for r in journal.resume()] == [(4, 2)]
    assert not journal.can_resume(0)
    journal.close(0)
    assert journal.resume() == []


def test_the_time_that_a_resumed_request_has_run_is_no_time_in_the_queue() -> None:
    journal = Journal()
    journal.open(request(0, PROMPT, SamplingParams(max_tokens=9)))
    before = time.monotonic_ns()
    (again,) = journal.resume()
    assert before <= again.arrival_ns <= time.monotonic_ns()


def test_a_prompt_that_may_be_half_scored_is_not_tried_again() -> None:
    journal = Journal()
    journal.open(request(0, PROMPT, SamplingParams(max_tokens=9, prompt_logprobs=0)))
    assert not journal.can_resume(0)
    journal.note(TokenEvent(request_id=0, token_ids=(4,)))
    assert journal.can_resume(0)


def test_streams_survive_a_killed_process() -> None:
    async def test() -> None:
        async with live.Engine(replace(live.config("create_slow"), resume=True)) as engine:
            prompts = [[i, 2, 3] for i in range(4)]
            handles = [live.submit(engine, 12, prompt) for prompt in prompts]
            begun = [list(await handle.next()) for handle in handles]
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            for prompt, handle, events in zip(prompts, handles, begun, strict=True):
                events += await live.read(handle)
                assert live.tokens(events) == continuation(prompt, 12)
                assert events[-1].finish_reason is FinishReason.LENGTH
            await live.restarted(engine, 1)
            assert [handle.resumed for handle in handles] == [1, 1, 1, 1]
            later = live.submit(engine, 2, PROMPT)
            await live.read(later)
            assert later.resumed == 0
            assert await engine.drain(live.TIMEOUT_S)

    live.run(test())


@pytest.mark.parametrize(
    ("loads", "restarts", "timeouts_s"),
    [("serve die die serve", 3, (600.0,)), ("serve hang serve", 2, (3.75, 20.0))],
)
def test_streams_survive_processes_that_die_or_hang_while_they_load(
    loads: str, restarts: int, timeouts_s: tuple[float, ...], tmp_path: Path
) -> None:
    model = write_model(by_name("llama"), tmp_path)

    async def test(timeout_s: float) -> None:
        model.with_suffix(".told").write_text(loads, encoding="ascii")
        chosen = replace(
            live.config("create_told_how_to_load"), model=model, load_timeout_s=timeout_s
        )
        async with live.Engine(replace(chosen, resume=True)) as engine:
            handle = live.submit(engine, 12, PROMPT)
            events = list(await handle.next())
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            events += await live.read(handle)
            assert live.tokens(events) == continuation(PROMPT, 12)
            await live.restarted(engine, restarts)

    for timeout_s in timeouts_s[:-1]:
        with suppress(AssertionError, EngineDied):  # a busy machine loads no faster than it hangs
            return live.run(test(timeout_s))
    return live.run(test(timeouts_s[-1]))


def test_a_request_the_engine_dies_of_twice_gets_an_error() -> None:
    async def test() -> None:
        async with live.Engine(
            replace(live.config("create_failing_collect_0"), resume=True)
        ) as engine:
            events = await live.read(live.submit(engine))
            assert events[-1].finish_reason is FinishReason.DIED
            assert engine.status.restarts <= 2
            assert engine.status.state is not EngineState.STOPPED

    live.run(test())


@pytest.mark.parametrize("starts", [False, True], ids=["before a start", "at the start"])
def test_a_client_that_leaves_meanwhile_is_not_resumed(starts: bool) -> None:
    """And the process that has just been started lives on."""

    async def test() -> None:
        async with live.Engine(replace(live.config("create_slow"), resume=True)) as engine:
            handle, witness = live.submit(engine, 4000), live.submit(engine, 12)
            await handle.next()
            old = engine.pid
            assert old is not None
            os.kill(old, signal.SIGKILL)
            while engine.status.state is EngineState.READY:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.005)
            while starts and engine.pid in (old, None):  # noqa: ASYNC110 - polled
                await asyncio.sleep(0)
            handle.close()
            assert live.tokens(await live.read(witness)) == continuation(live.PROMPT, 12)
            assert engine.status.stats.running == 0
            await live.restarted(engine, 1)

    live.run(test())


def test_no_more_tokens_of_a_prompt_are_found_than_it_has() -> None:
    bench, prompt = Bench(), PROMPT * 5
    first = bench.run(request(0, prompt, SamplingParams(max_tokens=60)))[0]
    whole = request(1, prompt, SamplingParams(max_tokens=60))
    last = bench.run(resumed(whole, first.token_ids[:40]))[1].last
    assert last is not None
    assert last.cached_tokens == len(prompt)
