"""An engine process that says nothing any more: what is held to time all the same."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.ipc.params import FinishReason, SamplingParams
from rocmforge.engine.ipc.status import EngineState
from rocmforge.errors import EngineDied
from tests.support.requests import asked
from tests.unit.engine.client.test_client import PROMPT, Engine, config, read, run

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
        while engine.status.silence_s < 0.5:  # noqa: ASYNC110 - a status is polled
            await asyncio.sleep(0.01)
        assert engine.status.state is EngineState.LOADING
        with pytest.raises(EngineDied, match=r"no news for 3\.\d s while loading"):
            await engine.wait_ready()
        await engine.stop()

    run(test())
