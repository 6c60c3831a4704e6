"""A client with an engine process over the fake backend, and what comes out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.handle import GenerationHandle
from rocmforge.engine.ipc.params import SamplingParams, TokenEvent
from rocmforge.engine.ipc.status import EngineState
from tests.support.engine.requests import asked
from tests.support.models.any_model import any_model
from tests.unit.engine.helpers import options

PROMPT = [3, 1, 4, 1, 5]
TIMEOUT_S = 60.0  # for what takes well under a second on an idle machine


def config(variant: str = "create", *, max_sequences: int = 64) -> EngineConfig:
    return EngineConfig(
        backend=f"tests.support.fakes.fake_backend:{variant}",
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
