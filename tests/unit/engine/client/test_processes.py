"""Engine processes that load, fail, hang and end, as their client sees it."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.engine_process import EngineProcess
from rocmforge.engine.ipc.messages import (
    Fatal,
    Progress,
    Ready,
    Report,
    Shutdown,
    Start,
    StepReport,
)
from rocmforge.engine.ipc.params import FinishReason, SamplingParams
from rocmforge.engine.ipc.status import EngineState
from rocmforge.engine.ipc.wire import FrameReader, encode
from rocmforge.errors import EngineDied, NotReady, OutOfMemory, UnsupportedArchitecture
from tests.support.engine.engine_client import (
    PROMPT,
    TIMEOUT_S,
    Engine,
    config,
    loading,
    read,
    run,
    state,
    submit,
    tokens,
)
from tests.support.engine.start import start_message
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.helpers import request

pytestmark = pytest.mark.slow

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


def test_why_it_ends_is_not_lost_on_a_server_that_sends_something_before_it_reads() -> None:
    process, ours = start_process("create_failing_collect_0")
    asked = encode(request(0, PROMPT, SamplingParams(max_tokens=1)))
    reader: FrameReader[Report] = FrameReader(Report)
    reports: list[Report] = []
    with process, ours:
        while not any(isinstance(report, Ready) for report in reports):
            reports.extend(reader.feed(ours.recv(4096)))
        ours.sendall(asked)
        select.select([ours], [], [])
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)  # long enough to end, if it did not wait
        ours.sendall(asked)
        while data := ours.recv(4096):
            reports.extend(reader.feed(data))
        ours.close()
        assert process.wait(TIMEOUT_S) == 1
    last = reports[-1]
    assert isinstance(last, Fatal)
    assert last.message == "fake collect failed: planted at call 0"


SERVER = f"""
import asyncio, pathlib
from rocmforge.engine.client.client import AsyncEngine
from tests.support.engine.engine_client import config

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
