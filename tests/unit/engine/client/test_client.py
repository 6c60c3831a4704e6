"""The client and a real engine process over the fake backend."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any

import pytest
import uvloop

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.engine_process import EngineProcess
from rocmforge.engine.client.handle import GenerationHandle
from rocmforge.engine.ipc.messages import (
    Progress,
    Ready,
    Report,
    Shutdown,
    Start,
    StepReport,
)
from rocmforge.engine.ipc.params import (
    FinishReason,
    SamplingParams,
    Share,
    TokenEvent,
)
from rocmforge.engine.ipc.status import EngineState
from rocmforge.engine.ipc.wire import FrameReader, encode
from rocmforge.errors import (
    Draining,
    EngineDied,
    InvalidParameter,
    NotReady,
    OutOfMemory,
    QueueFull,
    UnsupportedArchitecture,
)
from tests.support.any_model import any_model
from tests.support.fake_backend import continuation
from tests.support.requests import asked
from tests.support.start import start_message
from tests.unit.engine.helpers import options, request

pytestmark = pytest.mark.slow

PROMPT = [3, 1, 4, 1, 5]
LONG = SamplingParams(max_tokens=1000)
TIMEOUT_S = 60.0  # for what takes well under a second on an idle machine


def config(variant: str = "create", *, max_sequences: int = 64) -> EngineConfig:
    return EngineConfig(
        backend=f"tests.support.fake_backend:{variant}",
        model=any_model(),
        options=options(max_sequences=max_sequences),
        restart_backoff_s=0.01,
        restart_backoff_max_s=0.05,
    )


def run(
    test: Coroutine[Any, Any, None],
    run_loop: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> None:
    """Runs a test's coroutine; nothing in here may hang."""

    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await test

    run_loop(bounded())


class Engine:
    """A ready engine for the length of a `with`, and what came out of it."""

    def __init__(self, chosen: EngineConfig | str = "create") -> None:
        if isinstance(chosen, str):
            chosen = config(chosen)
        self.engine = AsyncEngine(chosen)

    async def __aenter__(self) -> AsyncEngine:
        await self.engine.start()
        await self.engine.wait_ready()
        return self.engine

    async def __aexit__(self, *exc: object) -> None:
        await self.engine.stop()
        assert self.engine.pid is None


def submit(
    engine: AsyncEngine, max_tokens: int = 20, prompt: list[int] = PROMPT
) -> GenerationHandle:
    return engine.submit(asked(prompt, SamplingParams(max_tokens=max_tokens)))


async def read(handle: GenerationHandle) -> list[TokenEvent]:
    """All events to the last."""
    events: list[TokenEvent] = []
    while not events or events[-1].finish_reason is None:
        events.extend(await handle.next())
    return events


def tokens(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def state(engine: AsyncEngine) -> EngineState:
    return engine.status.state


async def restarted(engine: AsyncEngine, count: int) -> None:
    """Until it has been started again that often: who is through before may hear of no kill."""
    while engine.status.restarts < count:  # noqa: ASYNC110 - a status is polled
        await asyncio.sleep(0.005)
    assert engine.status.restarts == count


async def loading(variant: str) -> AsyncEngine:
    """An engine whose process has begun to load."""
    engine = AsyncEngine(config(variant))
    await engine.start()
    while engine.status.stage != "making weights up":  # noqa: ASYNC110 - a status is polled
        await asyncio.sleep(0.005)
    return engine


# --- serving ---


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("variant", ["create", "create_pipelined"])
def test_concurrent_requests_get_their_own_tokens(
    variant: str, run_loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def test() -> None:
        async with Engine(variant) as engine:
            prompts = [[i] * (1 + i % 7) for i in range(100)]
            handles = [submit(engine, 30, prompt) for prompt in prompts]
            for prompt, events in zip(
                prompts, await asyncio.gather(*map(read, handles)), strict=True
            ):
                assert tokens(events) == continuation(prompt, 30)
                assert events[-1].finish_reason is FinishReason.LENGTH

    run(test(), run_loop)


def test_the_status_describes_the_loaded_model() -> None:
    async def test() -> None:
        async with Engine() as engine:
            status = engine.status
            assert status.state is EngineState.READY
            assert status.runner is not None
            assert status.runner.device.target == "fake"
            assert status.restarts == 0
            assert not status.is_fallback
            assert status.last_error is None

    run(test())


def test_statistics_count_every_step_and_end_with_nothing_in_use() -> None:
    async def test() -> None:
        async with Engine() as engine:
            await read(submit(engine))
            stats = engine.status.stats
            assert stats.blocks_total == 4096
            assert (stats.totals.steps, stats.totals.prefill_tokens) == (20, len(PROMPT))
            assert (stats.totals.decode_tokens, stats.totals.device_ns) == (20, 20_000)
            assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)

    run(test())


def test_next_lets_other_tasks_run_even_when_events_are_waiting() -> None:
    async def test() -> None:
        async with Engine() as engine:
            handle = submit(engine, 1)
            assert await engine.drain(TIMEOUT_S)
            others: list[str] = []
            task = asyncio.create_task(asyncio.sleep(0))
            task.add_done_callback(lambda _: others.append("ran"))
            asyncio.get_running_loop().call_soon(others.append, "called")
            assert (await handle.next())[-1].finish_reason is not None
            assert "called" in others

    run(test())


def test_a_closed_handle_ends_and_its_blocks_are_freed() -> None:
    async def test() -> None:
        async with Engine("create_slow") as engine:
            handle, witness = submit(engine, 4000), submit(engine, 5)
            await handle.next()
            handle.close()
            handle.close()
            events = await read(handle)
            assert events[-1].finish_reason is FinishReason.CANCELLED
            await read(witness)
            assert engine.status.stats.blocks_used == 0

    run(test())


def test_closing_wakes_a_reader() -> None:
    async def test() -> None:
        async with Engine("create_hanging_0") as engine:
            handle = submit(engine)
            reader = asyncio.create_task(handle.next())
            await asyncio.sleep(0)
            handle.close()
            (event,) = await reader
            assert event.finish_reason is FinishReason.CANCELLED
            os.kill(engine.pid or 0, signal.SIGKILL)

    run(test())


def test_two_hundred_random_closes_under_load_leave_no_block_in_use() -> None:
    async def client(engine: AsyncEngine, random: Random) -> None:
        prompt = [9] * random.randrange(40) + [random.randrange(1000)]
        handle = submit(engine, 2000, prompt)
        produced: list[int] = []
        for _ in range(random.randrange(4)):
            for event in await handle.next():
                produced.extend(event.token_ids)
        handle.close()
        assert produced == continuation(prompt, len(produced))

    async def test() -> None:
        async with Engine("create_pipelined") as engine:
            await asyncio.gather(*[client(engine, Random(i)) for i in range(200)])
            assert tokens(await read(submit(engine))) == continuation(PROMPT, 20)
            assert engine.status.stats.blocks_used == 0
            assert engine.status.stats.running == 0
            assert engine.status.stats.waiting == 0

    run(test())


def test_a_deadline_ends_a_request() -> None:
    async def test() -> None:
        async with Engine("create_slow") as engine:
            deadline_ns = time.monotonic_ns() + 100_000_000
            long = asked(PROMPT, SamplingParams(max_tokens=4000), deadline_ns=deadline_ns)
            events = await read(engine.submit(long))
            assert events[-1].finish_reason is FinishReason.DEADLINE

    run(test())


def test_a_handle_that_nobody_reads_is_cancelled() -> None:
    async def test() -> None:
        async with Engine(replace(config("create_slow"), client_stall_s=0.1)) as engine:
            handle = submit(engine, 4000)
            assert await engine.drain(TIMEOUT_S)
            assert (await read(handle))[-1].finish_reason is FinishReason.CANCELLED

    run(test())


# --- what is refused ---


def test_what_cannot_be_computed_is_refused_before_it_is_sent() -> None:
    async def test() -> None:
        async with Engine() as engine:
            with pytest.raises(InvalidParameter, match="empty"):
                submit(engine, prompt=[])
            for bad in ([1000], [-1]):
                with pytest.raises(InvalidParameter, match=r"0\.\.999"):
                    submit(engine, prompt=bad)
            with pytest.raises(InvalidParameter) as invalid:
                engine.submit(
                    asked(PROMPT, SamplingParams(max_tokens=1, logit_bias=((5000, 1.0),)))
                )
            assert invalid.value.param == "logit_bias"
            assert await engine.drain(0.0), "nothing was admitted"

    run(test())


def test_what_cannot_be_sent_is_not_waited_for() -> None:
    async def test() -> None:
        async with Engine() as engine:
            with pytest.raises(OverflowError):
                engine.submit(asked(PROMPT, SamplingParams(max_tokens=2, seed=2**64)))
            assert await engine.drain(0.0), "nothing was admitted"

    run(test())


def test_the_queue_is_bounded_and_opens_again() -> None:
    async def test() -> None:
        chosen = replace(config("create_slow", max_sequences=2), max_waiting=1)
        async with Engine(chosen) as engine:
            handles = [submit(engine, 1000) for _ in range(3)]
            with pytest.raises(QueueFull) as caught:
                submit(engine)
            assert caught.value.retry_after_s > 0
            handles[0].close()
            handles.append(submit(engine, 1))
            for handle in handles:
                handle.close()

    run(test())


def test_a_key_that_fills_the_queue_leaves_places_to_others() -> None:
    def submit_as(engine: AsyncEngine, key: int) -> GenerationHandle:
        return engine.submit(asked(PROMPT, LONG, share=Share(key=key)))

    def fill(engine: AsyncEngine, key: int) -> list[GenerationHandle]:
        taken = []
        try:
            while True:
                taken.append(submit_as(engine, key))
        except QueueFull:
            return taken

    async def test() -> None:
        chosen = replace(config("create_slow", max_sequences=8), max_waiting=56)
        async with Engine(chosen) as engine:
            handles = [fill(engine, key) for key in (1, 2, 3)]
            assert [len(taken) for taken in handles] == [48, 12, 3]
            handles.append([submit_as(engine, 4)])
            for handle in chain(*handles):
                handle.close()

    run(test())


def test_a_queue_that_is_not_needed_is_for_whoever_comes() -> None:
    async def test() -> None:
        chosen = replace(config("create_slow", max_sequences=8), max_waiting=0)
        async with Engine(chosen) as engine:
            for _ in range(8):
                engine.submit(asked(PROMPT, LONG, share=Share(key=1)))
            with pytest.raises(QueueFull):
                engine.submit(asked(PROMPT, LONG, share=Share(key=1)))

    run(test())


def test_draining_refuses_new_requests_and_finishes_the_old() -> None:
    async def test() -> None:
        async with Engine("create_slow") as engine:
            handle = submit(engine, 5)
            drain = asyncio.create_task(engine.drain(TIMEOUT_S))
            await asyncio.sleep(0)
            assert state(engine) is EngineState.DRAINING
            with pytest.raises(Draining):
                submit(engine)
            assert await drain
            assert tokens(await read(handle)) == continuation(PROMPT, 5)

    run(test())


def test_a_drain_that_takes_too_long_says_so() -> None:
    async def test() -> None:
        async with Engine("create_slow") as engine:
            handle = submit(engine, 4000)
            assert not await engine.drain(0.05)
            await engine.stop()
            assert (await read(handle))[-1].finish_reason is FinishReason.DIED

    run(test())


# --- loading ---


def test_nothing_is_taken_while_loading_and_stopping_then_is_quick() -> None:
    async def test() -> None:
        engine = await loading("create_stuck_load")
        assert state(engine) is EngineState.LOADING
        with pytest.raises(NotReady):
            submit(engine)
        await engine.stop()
        assert state(engine) is EngineState.STOPPED
        with pytest.raises(EngineDied, match="stopped"):
            await engine.wait_ready()

    run(test())


def test_a_load_error_arrives_with_its_type_and_is_final() -> None:
    async def test() -> None:
        engine = AsyncEngine(config("create_unloadable"))
        await engine.start()
        with pytest.raises(UnsupportedArchitecture) as caught:
            await engine.wait_ready()
        assert caught.value.supported == ("llama", "qwen3")
        assert state(engine) is EngineState.STOPPED
        assert "not supported" in (engine.status.last_error or "")
        await engine.stop()

    run(test())


def test_a_process_that_dies_while_loading_is_reported_and_not_retried() -> None:
    async def test() -> None:
        engine = await loading("create_stuck_load")
        os.kill(engine.pid or 0, signal.SIGKILL)
        with pytest.raises(EngineDied, match="SIGKILL"):
            await engine.wait_ready()
        assert engine.status.restarts == 0
        await engine.stop()

    run(test())


# --- faults ---


def test_a_killed_process_fails_every_handle_and_is_replaced() -> None:
    async def test() -> None:
        async with Engine("create_slow") as engine:
            handles = [submit(engine, 4000) for _ in range(70)]
            await handles[0].next()
            before = engine.pid
            os.kill(before or 0, signal.SIGKILL)
            for events in await asyncio.gather(*map(read, handles)):
                assert events[-1].finish_reason is FinishReason.DIED
                assert "SIGKILL" in (events[-1].error or "")
            stats = engine.status.stats
            assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
            assert state(engine) is EngineState.RESTARTING
            with pytest.raises(NotReady):
                submit(engine)
            await engine.wait_ready()
            assert engine.pid != before
            assert engine.status.restarts == 1
            assert tokens(await read(submit(engine, 3))) == continuation(PROMPT, 3)
            assert engine.status.stats.totals.steps == stats.totals.steps + 3, "counters go on"

    run(test())


@pytest.mark.parametrize("call", range(6))
@pytest.mark.parametrize("where", ["submit", "collect"])
def test_a_runner_that_fails_on_call_k_fails_every_handle_and_is_replaced(
    where: str, call: int
) -> None:
    async def test() -> None:
        async with Engine(f"create_failing_{where}_{call}") as engine:
            handles = [submit(engine, 10) for _ in range(3)]
            for events in await asyncio.gather(*map(read, handles)):
                assert events[-1].finish_reason is FinishReason.DIED
                assert events[-1].error == f"fake {where} failed: planted at call {call}"
                assert tokens(events) == continuation(PROMPT, len(tokens(events)))
            assert state(engine) is EngineState.RESTARTING
            await engine.wait_ready()
            assert engine.status.restarts == 1
            assert f"planted at call {call}" in (engine.status.last_error or "")

    run(test())


def test_the_pause_before_a_restart_doubles_until_a_request_is_finished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(engine: AsyncEngine) -> None:
        await read(submit(engine))
        await engine.wait_ready()

    async def test() -> None:
        async with Engine("create_failing_collect_0") as engine:
            for _ in range(4):
                await fail(engine)

    with caplog.at_level(logging.ERROR, "rocmforge.engine.client.supervisor"):
        run(test())
    pauses = [
        record.args[-1]
        for record in caplog.records
        if isinstance(record.args, tuple) and "is started again" in record.getMessage()
    ]
    assert pauses == [0.01, 0.02, 0.04, 0.05]


def test_a_step_that_never_ends_is_noticed_and_the_process_replaced() -> None:
    async def test() -> None:
        async with Engine(replace(config("create_hanging_2"), step_timeout_s=0.5)) as engine:
            events = await read(submit(engine))
            assert events[-1].finish_reason is FinishReason.DIED
            assert "gave no news" in (events[-1].error or "")
            await engine.wait_ready()
            assert engine.status.restarts == 1

    run(test())


def test_a_process_that_cannot_be_killed_is_told_of_and_replaced_once_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hang_in_the_driver(self: EngineProcess, verdict: str) -> None:
        """What SIGKILL does to a process that waits for a device without a way to interrupt it."""

    async def test() -> None:
        chosen = replace(config("create_hanging_2"), step_timeout_s=0.3, stop_grace_s=0.3)
        async with Engine(chosen) as engine:
            with monkeypatch.context() as patch:
                patch.setattr(EngineProcess, "kill", hang_in_the_driver)
                pid = engine.pid
                events = await read(submit(engine))
                assert events[-1].finish_reason is FinishReason.DIED
                status = engine.status
                assert (status.is_wedged, status.state) == (True, EngineState.RESTARTING)
                assert "does not end" in (status.last_error or "")
                assert status.last_error_at is not None
                assert engine.pid == pid, "it is still there"
                with pytest.raises(NotReady):
                    submit(engine)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await engine.wait_ready()
            assert not engine.status.is_wedged
            events = await read(submit(engine, 1))
            while events[-1].finish_reason is FinishReason.DIED:  # a busy machine took too long
                assert "gave no news" in (events[-1].error or "")
                await engine.wait_ready()
                events = await read(submit(engine, 1))
            assert tokens(events) == continuation(PROMPT, 1)

    run(test())


def test_silence_is_told_while_requests_are_there() -> None:
    async def test() -> None:
        async with Engine(replace(config("create_hanging_2"), stop_grace_s=1.0)) as engine:
            assert engine.status.silence_s == 0
            handle = submit(engine)
            while engine.status.silence_s < 0.3:  # noqa: ASYNC110 - a status is polled
                await asyncio.sleep(0.05)
            handle.close()
            assert engine.status.silence_s == 0

    run(test())


def test_an_idle_engine_is_not_taken_for_a_stuck_one() -> None:
    async def serves_after(silence_s: float) -> bool:
        chosen = replace(config("create_very_slow"), step_timeout_s=silence_s, client_stall_s=2.0)
        async with Engine(chosen) as engine:
            await asyncio.sleep(1.1 * silence_s)
            is_idle_well = engine.status.restarts == 0
            answer = tokens(await read(submit(engine, 1)))  # a step of 0.7 s
            return is_idle_well and answer == continuation(PROMPT, 1)

    async def test() -> None:
        # A busy machine may need more than the first for that step.
        assert await serves_after(2.0) or await serves_after(10.0)

    run(test())


# --- the process itself ---


def start_process(variant: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """An engine process without a client; it has been told what to load."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "rocmforge.engine.process", "--fd", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
        )
    ours.sendall(encode(start_of(variant)))
    return process, ours


def start_of(variant: str) -> Start:
    """What tells a process to load this backend."""
    chosen = config(variant)
    return start_message(chosen.backend, str(chosen.model), chosen.options)


def test_stopping_does_not_wait_for_a_process_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        process = await EngineProcess.spawn(start_of("create"), lambda report: None)
        os.kill(process.pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(EngineProcess, "kill", lambda self, verdict: None)
            await process.shut_down(0.2)
        process.kill("is let go")
        assert await process.wait(TIMEOUT_S) == "is let go"

    run(test())


@pytest.mark.parametrize("variant", ["create", "create_stuck_load"])
def test_the_process_ends_when_the_connection_does(variant: str) -> None:
    process, ours = start_process(variant)
    with process, ours:
        reader: FrameReader[Report] = FrameReader(Report)
        first = next(iter(reader.feed(ours.recv(4096))))
        assert isinstance(first, Progress)
        ours.close()
        assert process.wait(TIMEOUT_S) == 1


def test_memory_that_the_machine_does_not_give_is_an_error_that_says_so() -> None:
    async def test() -> None:
        engine = AsyncEngine(config("create_huge"))
        await engine.start()
        with pytest.raises(OutOfMemory, match="Unable to allocate"):
            await engine.wait_ready()
        await engine.stop()

    run(test())


def test_the_process_leaves_interrupt_and_termination_to_the_server() -> None:
    process, ours = start_process("create")
    with process, ours:
        reader: FrameReader[Report] = FrameReader(Report)
        reports: list[Report] = []
        while not any(isinstance(report, Ready) for report in reports):
            reports.extend(reader.feed(ours.recv(4096)))
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        ours.sendall(encode(request(0, PROMPT, SamplingParams(max_tokens=1))))
        (report,) = reader.feed(ours.recv(4096))
        assert isinstance(report, StepReport)
        ours.sendall(encode(Shutdown()))
        assert process.wait(TIMEOUT_S) == 0


SERVER = f"""
import asyncio, pathlib
from rocmforge.engine.client.client import AsyncEngine
from tests.unit.engine.client.test_client import config

async def main():
    engine = AsyncEngine(config("create"))
    await engine.start()
    await engine.wait_ready()
    print(engine.pid, flush=True)
    await asyncio.sleep({TIMEOUT_S})

asyncio.run(main())
"""


def test_the_process_does_not_outlive_a_killed_server() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        engine = os.pidfd_open(int(server.stdout.readline()))
        try:
            server.kill()
            ended, _, _ = select.select([engine], [], [], TIMEOUT_S)
        finally:
            os.close(engine)
        assert ended


def test_a_full_queue_says_how_long_a_place_took_lately() -> None:
    async def test() -> None:
        chosen = replace(config("create_very_slow", max_sequences=1), max_waiting=0)
        async with Engine(chosen) as engine:
            for _ in range(2):
                await read(submit(engine, 3))  # three steps of 0.7 s
            handle = submit(engine, 100)
            with pytest.raises(QueueFull) as caught:
                submit(engine)
            assert caught.value.retry_after_s > 1
            handle.close()

    run(test())
