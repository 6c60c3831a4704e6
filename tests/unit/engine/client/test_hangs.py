"""An engine process that says nothing any more: what is held to time all the same."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace

import pytest

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.ipc.params import FinishReason, SamplingParams
from rocmforge.engine.ipc.status import EngineState
from rocmforge.errors import EngineDied
from tests.support.engine.engine_client import PROMPT, Engine, config, read, run, submit
from tests.support.engine.requests import asked

pytestmark = pytest.mark.slow


def test_a_deadline_holds_while_the_engine_hangs() -> None:
    async def test() -> None:
        async with Engine(replace(config("create_hanging_2"), stop_grace_s=0.1)) as engine:
            began = time.monotonic()
            deadline_ns = time.monotonic_ns() + 500_000_000
            sampling = SamplingParams(max_tokens=20)
            handle = engine.submit(asked(PROMPT, sampling, deadline_ns=deadline_ns))
            assert (await read(handle))[-1].finish_reason is FinishReason.DEADLINE
            assert 0.5 <= time.monotonic() - began < engine_step_timeout_s / 4
            assert await engine.drain(0.0), "nothing waits any more"

    engine_step_timeout_s = config().step_timeout_s
    run(test())


def test_loading_that_never_gets_on_is_told_and_ended() -> None:
    chosen = replace(config("create_stuck_load"), load_timeout_s=3.0)

    async def test() -> None:
        engine = AsyncEngine(chosen)
        await engine.start()
        seen = []
        while (status := engine.status).state is EngineState.LOADING:
            seen.append(status.silence_s)
            await asyncio.sleep(0.01)
        assert max(seen) > 0.2, "it is told meanwhile"
        with pytest.raises(EngineDied, match=r"no news for \d+\.\d s while loading") as raised:
            await engine.wait_ready()
        (silence_s,) = re.findall(r"(\S+) s while", raised.value.message)
        assert float(silence_s) >= chosen.load_timeout_s
        await engine.stop()

    run(test())


def test_time_in_which_the_server_itself_stood_still_is_no_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a container is paused, with all processes in it."""
    paused_s, clock = 0.0, time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + paused_s)

    async def test() -> None:
        nonlocal paused_s
        async with Engine("create_hanging_2") as engine:
            handle, pid = submit(engine), engine.pid
            assert await handle.next()
            paused_s = 10 * config().step_timeout_s
            for _ in range(10):  # the guard is due, and nothing comes of the engine
                await asyncio.sleep(0)
            assert engine.status.silence_s < config().step_timeout_s
            assert engine.pid == pid

    asyncio.run(test())
