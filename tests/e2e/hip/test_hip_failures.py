"""A device that fails or hangs takes the engine process with it, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.handle import GenerationHandle
from rocmforge.engine.ipc.params import FinishReason, SamplingParams, TokenEvent
from rocmforge.engine.ipc.status import EngineState
from tests.data.models.tiny_models import PROMPT, by_name, write_model
from tests.support.failing_hip import FAILING_STEP
from tests.support.hip import fitting, platform_options, start_platform
from tests.support.options import SMALL
from tests.support.requests import asked

TIMEOUT_S = 120.0  # for what takes a few seconds on an idle machine
STEP_TIMEOUT_S = 5.0
REQUESTS = 6


@pytest.fixture(scope="module", autouse=True)
def host(request: pytest.FixtureRequest) -> Iterator[None]:
    """The checking library, which engine processes inherit."""
    options = platform_options(request)
    if options.platform != "host":
        pytest.skip("a fault would end the use of a GPU")
    with pytest.MonkeyPatch.context() as patch:
        start_platform(options, patch)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama."""
    return write_model(fitting(by_name("llama")), tmp_path_factory.mktemp("failures"))


@asynccontextmanager
async def running(model: Path, kind: str) -> AsyncIterator[AsyncEngine]:
    """A ready engine whose device fails in a certain way."""
    config = EngineConfig(
        backend=f"tests.support.failing_hip:create_{kind}",
        model=model,
        options=SMALL,
        step_timeout_s=STEP_TIMEOUT_S,
        restart_backoff_s=0.01,
    )
    engine = AsyncEngine(config)
    async with asyncio.timeout(TIMEOUT_S):
        await engine.start()
        try:
            await engine.wait_ready()
            yield engine
        finally:
            await engine.stop()


def submit(engine: AsyncEngine, max_tokens: int) -> GenerationHandle:
    return engine.submit(asked(PROMPT[:5], SamplingParams(max_tokens=max_tokens, temperature=0.0)))


async def read(handle: GenerationHandle) -> TokenEvent:
    """The last event."""
    while True:
        for event in await handle.next():
            if event.finish_reason is not None:
                return event


@pytest.mark.parametrize(
    ("kind", "reason"), [("hanging", "it gave no news for"), ("faulting", "hipErrorIllegalAddress")]
)
def test_every_request_gets_an_error_and_a_new_process_serves(
    kind: str, reason: str, model: Path
) -> None:
    async def test() -> None:
        async with running(model, kind) as engine:
            first_life = engine.pid
            handles = [submit(engine, 2 * FAILING_STEP) for _ in range(REQUESTS)]
            for event in await asyncio.gather(*map(read, handles)):
                assert event.finish_reason is FinishReason.DIED
                assert reason in (event.error or "")
            assert engine.status.state is not EngineState.READY
            await engine.wait_ready()
            status = engine.status
            assert (status.state, status.restarts) == (EngineState.READY, 1)
            assert reason in (status.last_error or "")
            assert engine.pid != first_life
            assert (await read(submit(engine, 2))).finish_reason is FinishReason.LENGTH

    asyncio.run(test())
