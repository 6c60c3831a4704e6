"""What becomes of an engine whose device fails, with a real process and the kernel's files."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.engine.client import supervisor
from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.faults import ADVICE, advice, refine
from rocmforge.engine.ipc.params import FinishReason
from rocmforge.engine.ipc.status import EngineState
from rocmforge.errors import Fault, NotReady, OutOfMemory
from rocmforge.fleet.entry import FleetEntry, ModelState
from rocmforge.fleet.fleet import Fleet
from rocmforge.sensors.kernel_log import KernelEvent
from rocmforge.sensors.watch import DeviceWatch
from tests.api.fake_engine import make_model
from tests.support.engine.engine_client import PROMPT, config, read, run, submit, tokens
from tests.support.fakes.fake_backend import BUS_ID
from tests.support.fakes.fake_model import continuation
from tests.support.files.device_tree import GIB, DeviceTree

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0


class Engines:
    """A fleet of one model, and the engine that it has now."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.entry = fleet.models[0].entry

    @property
    def engine(self) -> AsyncEngine:
        assert isinstance(self.entry.engine, AsyncEngine)
        return self.entry.engine

    def kill(self) -> None:
        assert self.engine.pid is not None
        os.kill(self.engine.pid, signal.SIGKILL)


@asynccontextmanager
async def watched(
    tree: DeviceTree, *, resume: bool = False, limit: int = 10
) -> AsyncIterator[Engines]:
    """A loaded model on a device that is looked after, but only when a test says so."""
    watch = DeviceWatch(tree.root, interval_s=3600.0, pid=os.getpid())
    patch = pytest.MonkeyPatch()
    patch.setattr(supervisor, "_WITNESS_S", PATIENCE_S)
    chosen = replace(config("create_watched"), name="tiny", resume=resume, restart_limit=limit)
    entry = FleetEntry("m", lambda totals: AsyncEngine(chosen, totals, watch=watch))
    fleet = Fleet([make_model(entry=entry)], watch=watch)
    try:
        await fleet.load_first(entry)
        await asyncio.to_thread(watch.look_soon, PATIENCE_S)
        yield Engines(fleet)
    finally:
        await fleet.stop()
        patch.undo()


@pytest.mark.parametrize(
    ("words", "fault", "end"),
    [
        ("GPU reset begin!", Fault.RESET, "was reset"),
        ("device lost from bus!", Fault.LOST, "fell off the bus"),
        ("GPU reset(3) failed", Fault.LOST, "could not be reset"),
    ],
)
def test_an_engine_is_replaced_when_the_kernel_resets_or_loses_its_device_though_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, words: str, fault: Fault, end: str
) -> None:
    tree = DeviceTree(tmp_path, BUS_ID)

    async def test() -> None:
        async with watched(tree, resume=True) as world:
            handle, before = submit(world.engine, 30), world.engine.pid
            events = list(await handle.next())
            assert before is not None
            os.kill(before, signal.SIGSTOP)  # or it is through before anybody has looked
            tree.say(words)
            await asyncio.to_thread(world.fleet.watch.look_soon, PATIENCE_S)
            events += await read(handle)
            assert tokens(events) == continuation(PROMPT, 30)
            status = world.engine.status
            assert world.engine.pid != before
            assert (status.restarts, status.last_fault) == (1, fault)
            assert status.faults == {fault: 1}
            why = f"killed: its device {BUS_ID} {end}. The kernel says: amdgpu {BUS_ID}: amdgpu: "
            assert why + words in (status.last_error or "")
            log = [r.getMessage() for r in caplog.records if r.name == supervisor.__name__]
            assert [line.partition(": ")[0] for line in log] == [f"tiny on {BUS_ID}"] * 3
            assert (ADVICE[Fault.LOST] in log[0]) == (fault is Fault.LOST), "once: no advice"
            assert "serves again after" in log[1]
            assert "requests continued" in log[2]

    run(test())


def test_an_engine_on_another_device_goes_on(tmp_path: Path) -> None:
    tree = DeviceTree(tmp_path, BUS_ID)

    async def test() -> None:
        async with watched(tree) as world:
            world.engine.end_for_device("0000:43:00.0", KernelEvent.RESET)
            assert tokens(await read(submit(world.engine, 2))) == continuation(PROMPT, 2)
            assert world.engine.status.restarts == 0

    run(test())


def test_the_kernel_says_why_a_process_ended_without_a_word(tmp_path: Path) -> None:
    tree = DeviceTree(tmp_path, BUS_ID)
    fault = "[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32769)"

    async def test() -> None:
        async with watched(tree) as world:
            tree.say(fault)  # nobody has looked yet
            world.kill()
            while not world.engine.status.restarts:  # noqa: ASYNC110 - a status is polled
                await asyncio.sleep(0.01)
            status = world.engine.status
            assert status.last_fault is Fault.ADDRESS
            assert f"was killed by SIGKILL. The kernel says: amdgpu {BUS_ID}: amdgpu: {fault}." in (
                status.last_error or ""
            )

    run(test())


def test_clients_do_not_see_the_kernels_words(tmp_path: Path) -> None:
    tree = DeviceTree(tmp_path, BUS_ID)

    async def test() -> None:
        async with watched(tree) as world:
            handle = submit(world.engine, 4000)
            await handle.next()
            tree.say("ring comp_1.0.0 timeout, signaled seq=1, emitted seq=2")
            world.kill()
            error = (await read(handle))[-1].error or ""
            assert "SIGKILL" in error
            assert "ring" not in error

    run(test())


def test_a_device_that_fails_in_each_life_is_given_up_although_it_serves_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen = replace(config("create_failing_collect_3"), restart_limit=2)

    async def test() -> None:
        engine = AsyncEngine(chosen)
        await engine.start()
        for _ in range(3):
            await engine.wait_ready()
            assert (await read(submit(engine)))[-1].finish_reason is FinishReason.DIED
        async with asyncio.timeout(PATIENCE_S):
            error = await engine.wait_given_up()
        assert "ended 3 times without finishing a request (error)" in error.message
        assert ADVICE[Fault.ERROR] in error.message
        status = engine.status
        assert (status.state, status.restarts) == (EngineState.FAILED, 2)
        assert status.last_error == error.message
        with pytest.raises(NotReady, match="is not started again"):
            submit(engine)
        assert status.stats.totals.steps >= 3
        await engine.stop()

    with caplog.at_level(logging.ERROR, "rocmforge.engine.client.supervisor"):
        run(test())
    said = [r.getMessage() for r in caplog.records]
    pauses = [re.findall(r"started again in (\S+) s", line) for line in said]
    assert pauses == [["0.01"], ["0.02"], []], "steps alone do not make it sound"


def test_a_finished_request_between_them_makes_each_failure_a_first_one(tmp_path: Path) -> None:
    tree = DeviceTree(tmp_path, BUS_ID)

    async def test() -> None:
        async with watched(tree, limit=1) as world:
            for count in (1, 2, 3):
                world.kill()
                while world.engine.status.restarts < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await world.engine.wait_ready()
                assert tokens(await read(submit(world.engine, 2))) == continuation(PROMPT, 2)

    run(test())


def test_a_model_whose_engine_is_given_up_has_failed_and_can_be_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = DeviceTree(tmp_path, BUS_ID)
    monkeypatch.setattr("rocmforge.fleet.fleet.RETRY_LOAD_S", 0.0)

    async def test() -> None:
        async with watched(tree, limit=1) as world:
            world.kill()
            while not world.engine.status.restarts:  # noqa: ASYNC110 - a status is polled
                await asyncio.sleep(0.01)
            await world.engine.wait_ready()
            world.kill()
            while world.entry.engine is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (world.entry.state, world.fleet.is_ready) == (ModelState.FAILED, False)
            status = world.entry.status
            assert (status.restarts, status.faults) == (1, {Fault.CRASH: 2}), "they stay known"
            assert "/models/load" in (status.last_error or "")
            await asyncio.to_thread(world.fleet.watch.look_soon, PATIENCE_S)
            assert world.fleet.watch.sight.readings == {}, "it may sleep now"
            await world.fleet.acquire(world.entry)
            world.entry.leave()
            assert world.fleet.is_ready
            assert tokens(await read(submit(world.engine, 2))) == continuation(PROMPT, 2)

    run(test())


def test_a_refusal_for_lack_of_memory_names_who_holds_it(tmp_path: Path) -> None:
    tree = DeviceTree(tmp_path, BUS_ID)
    tree.compute(4711, "llama-server", 9 * GIB)

    async def test() -> None:
        engine = AsyncEngine(config("create_huge"), watch=DeviceWatch(tmp_path))
        await engine.start()
        with pytest.raises(OutOfMemory) as raised:
            await engine.wait_ready()
        await engine.stop()
        assert "Unable to allocate" in raised.value.message
        assert raised.value.message.endswith(
            f" Memory of devices is held by llama-server (process 4711): 9.0 GiB of {BUS_ID}."
        )

    run(test())


@pytest.mark.parametrize(
    ("fault", "events", "refined"),
    [
        (Fault.CRASH, (), Fault.CRASH),
        (Fault.CRASH, (KernelEvent.RESET, KernelEvent.TIMEOUT), Fault.RESET),
        (Fault.LOST, (KernelEvent.RESET, KernelEvent.MEMORY_ERROR), Fault.MEMORY),
        (Fault.HANG, (KernelEvent.RESET_FAILED, KernelEvent.RESET), Fault.LOST),
        (Fault.CRASH, (KernelEvent.RECOVERED, KernelEvent.OVERHEATED), Fault.CRASH),
        (Fault.MEMORY, (KernelEvent.RESET,), Fault.MEMORY),
        (Fault.ERROR, (KernelEvent.RESET,), Fault.ERROR),
    ],
)
def test_the_surest_of_the_kernels_words_names_a_vague_fault(
    fault: Fault, events: tuple[KernelEvent, ...], refined: Fault
) -> None:
    assert refine(fault, events) is refined


def test_there_is_advice_for_every_fault() -> None:
    assert ADVICE.keys() == set(Fault)


def test_advice_comes_once_there_is_something_to_do() -> None:
    assert advice(Fault.HANG, 1) == advice(Fault.ERROR, 2) == ""
    assert advice(Fault.HANG, 2) == f" {ADVICE[Fault.HANG]}"
    assert advice(Fault.MEMORY, 1) == f" {ADVICE[Fault.MEMORY]}"
