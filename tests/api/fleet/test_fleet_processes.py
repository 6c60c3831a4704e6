"""Loading and unloading with real engine processes, at inconvenient moments."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.fleet.entry import FleetEntry, ModelPolicy, ModelState
from rocmforge.fleet.fleet import Fleet
from tests.api.fake_engine import make_model
from tests.support.models.any_model import any_model
from tests.support.models.options import SMALL

PATIENCE_S = 60.0
REQUEST = GenerateRequest(
    prompt=token_prompt([1, 2, 3]),
    sampling=SamplingParams(max_tokens=4, ignore_eos=True),
    eos_ids=(999,),
    arrival_ns=0,
)


def make_fleet(backend: str) -> tuple[Fleet, FleetEntry]:
    """One model, loaded on request, on a backend of `tests.support.fakes.fake_backend`."""
    config = EngineConfig(
        backend=f"tests.support.fakes.fake_backend:{backend}",
        model=any_model(),
        options=replace(SMALL, max_context=1024, max_batched_tokens=64, kv_blocks=None),
        restart_backoff_s=0.01,
    )
    policy = ModelPolicy(at_start=False)
    entry = FleetEntry("a", lambda totals: AsyncEngine(config, totals), policy)
    return Fleet([make_model(entry=entry)]), entry


def pid_of(entry: FleetEntry) -> int:
    assert isinstance(entry.engine, AsyncEngine)
    assert entry.engine.pid is not None
    return entry.engine.pid


def has_process(entry: FleetEntry) -> bool:
    return isinstance(entry.engine, AsyncEngine) and entry.engine.pid is not None


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def answer(fleet: Fleet, entry: FleetEntry) -> FinishReason:
    """How one sequence ends."""
    await fleet.acquire(entry)
    try:
        handle = entry.enter().submit(REQUEST)
    finally:
        entry.leave()
    try:
        while True:
            reason = (await handle.next())[-1].finish_reason
            if reason is not None:
                return reason
    finally:
        handle.close()
        entry.leave()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a process sets no event
        await asyncio.sleep(0.01)


def bounded(steps: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await steps

    asyncio.run(run())


def test_a_model_comes_and_goes_and_its_counters_go_on() -> None:
    fleet, entry = make_fleet("create")

    async def steps() -> None:
        totals = []
        for _ in range(2):
            assert await answer(fleet, entry) is FinishReason.LENGTH
            pid = pid_of(entry)
            await fleet.unload(entry)
            assert not is_alive(pid)
            totals.append(entry.status.stats.totals.steps)
        assert 0 < totals[0] < totals[1]
        assert entry.status.stats.blocks_used == 0

    bounded(steps())


def test_a_load_that_would_take_an_hour_is_ended_at_once() -> None:
    fleet, entry = make_fleet("create_stuck_load")

    async def steps() -> None:
        asking = asyncio.create_task(answer(fleet, entry))
        await until(lambda: has_process(entry) and "weights" in entry.status.stage)
        pid = pid_of(entry)
        await fleet.unload(entry)
        assert not is_alive(pid)
        assert entry.state is ModelState.UNLOADED
        await asyncio.wait((asking,))
        assert asking.exception() is not None

    bounded(steps())


def test_the_end_of_the_server_ends_a_load() -> None:
    fleet, entry = make_fleet("create_stuck_load")

    async def steps() -> None:
        asking = asyncio.create_task(answer(fleet, entry))
        await until(lambda: has_process(entry) and "weights" in entry.status.stage)
        pid = pid_of(entry)
        await fleet.drain(1.0)
        await fleet.stop()
        assert not is_alive(pid)
        await asyncio.wait((asking,))

    bounded(steps())


def test_a_process_that_dies_is_started_again_and_may_be_unloaded_meanwhile() -> None:
    fleet, entry = make_fleet("create")

    async def steps() -> None:
        assert await answer(fleet, entry) is FinishReason.LENGTH
        os.kill(pid_of(entry), signal.SIGKILL)
        await until(lambda: entry.state is ModelState.RESTARTING)
        await until(lambda: entry.state is ModelState.READY)
        assert await answer(fleet, entry) is FinishReason.LENGTH
        pid = pid_of(entry)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: entry.state is ModelState.RESTARTING)
        await fleet.unload(entry)
        assert entry.state is ModelState.UNLOADED
        assert not is_alive(pid)
        assert await answer(fleet, entry) is FinishReason.LENGTH
        await fleet.stop()

    bounded(steps())


def test_what_still_runs_when_the_time_is_up_is_told() -> None:
    fleet, entry = make_fleet("create_very_slow")

    async def steps() -> None:
        asking = asyncio.create_task(answer(fleet, entry))
        await until(lambda: entry.is_up and entry.users == 1)
        assert entry.engine is not None
        pid = pid_of(entry)
        await fleet.stop()
        assert not is_alive(pid)
        assert await asking is FinishReason.DIED

    bounded(steps())
