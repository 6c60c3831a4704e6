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
from rocmforge.fleet.fleet import Fleet
from rocmforge.fleet.slot import ModelPolicy, ModelSlot, ModelState
from tests.api.fake_engine import make_model
from tests.support.options import SMALL

PATIENCE_S = 60.0
REQUEST = GenerateRequest(
    prompt_ids=(1, 2, 3),
    sampling=SamplingParams(max_tokens=4, ignore_eos=True),
    eos_ids=(999,),
    arrival_ns=0,
)


def make_fleet(backend: str) -> tuple[Fleet, ModelSlot]:
    """One model, loaded on request, on a backend of `tests.support.fake_backend`."""
    config = EngineConfig(
        backend=f"tests.support.fake_backend:{backend}",
        model=Path("made-up.gguf"),
        options=replace(SMALL, max_context=1024, max_batched_tokens=64, kv_blocks=None),
        restart_backoff_s=0.01,
    )
    policy = ModelPolicy(at_start=False)
    slot = ModelSlot("a", lambda totals: AsyncEngine(config, totals), policy)
    return Fleet([make_model(slot=slot)]), slot


def pid_of(slot: ModelSlot) -> int:
    assert isinstance(slot.engine, AsyncEngine)
    assert slot.engine.pid is not None
    return slot.engine.pid


def has_process(slot: ModelSlot) -> bool:
    return isinstance(slot.engine, AsyncEngine) and slot.engine.pid is not None


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def answer(fleet: Fleet, slot: ModelSlot) -> FinishReason:
    """How one sequence ends."""
    await fleet.acquire(slot)
    try:
        handle = slot.enter().submit(REQUEST)
    finally:
        slot.leave()
    try:
        while True:
            reason = (await handle.next())[-1].finish_reason
            if reason is not None:
                return reason
    finally:
        handle.close()
        slot.leave()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a process sets no event
        await asyncio.sleep(0.01)


def bounded(steps: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await steps

    asyncio.run(run())


def test_a_model_comes_and_goes_and_its_counters_go_on() -> None:
    fleet, slot = make_fleet("create")

    async def steps() -> None:
        totals = []
        for _ in range(2):
            assert await answer(fleet, slot) is FinishReason.LENGTH
            pid = pid_of(slot)
            await fleet.unload(slot)
            assert not is_alive(pid)
            totals.append(slot.status.stats.totals.steps)
        assert 0 < totals[0] < totals[1]
        assert slot.status.stats.blocks_used == 0

    bounded(steps())


def test_a_load_that_would_take_an_hour_is_ended_at_once() -> None:
    fleet, slot = make_fleet("create_stuck_load")

    async def steps() -> None:
        asking = asyncio.create_task(answer(fleet, slot))
        await until(lambda: has_process(slot) and "weights" in slot.status.stage)
        pid = pid_of(slot)
        await fleet.unload(slot)
        assert not is_alive(pid)
        assert slot.state is ModelState.UNLOADED
        await asyncio.wait((asking,))
        assert asking.exception() is not None

    bounded(steps())


def test_the_end_of_the_server_ends_a_load() -> None:
    fleet, slot = make_fleet("create_stuck_load")

    async def steps() -> None:
        asking = asyncio.create_task(answer(fleet, slot))
        await until(lambda: has_process(slot) and "weights" in slot.status.stage)
        pid = pid_of(slot)
        await fleet.drain(1.0)
        await fleet.stop()
        assert not is_alive(pid)
        await asyncio.wait((asking,))

    bounded(steps())


def test_a_process_that_dies_is_started_again_and_may_be_unloaded_meanwhile() -> None:
    fleet, slot = make_fleet("create")

    async def steps() -> None:
        assert await answer(fleet, slot) is FinishReason.LENGTH
        os.kill(pid_of(slot), signal.SIGKILL)
        await until(lambda: slot.state is ModelState.RESTARTING)
        await until(lambda: slot.state is ModelState.READY)
        assert await answer(fleet, slot) is FinishReason.LENGTH
        pid = pid_of(slot)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: slot.state is ModelState.RESTARTING)
        await fleet.unload(slot)
        assert slot.state is ModelState.UNLOADED
        assert not is_alive(pid)
        assert await answer(fleet, slot) is FinishReason.LENGTH
        await fleet.stop()

    bounded(steps())


def test_what_still_runs_when_the_time_is_up_is_told() -> None:
    fleet, slot = make_fleet("create_very_slow")

    async def steps() -> None:
        asking = asyncio.create_task(answer(fleet, slot))
        await until(lambda: slot.is_up and slot.users == 1)
        assert slot.engine is not None
        pid = pid_of(slot)
        await fleet.stop()
        assert not is_alive(pid)
        assert await asking is FinishReason.DIED

    bounded(steps())
