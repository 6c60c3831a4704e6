"""A device that fails or hangs takes the engine process with it, and nothing else.

Real engine processes with real requests on the checking platform, whose faults are planted by
RF_HOST_FAULT; the kernel's files are those of a tree. Each with what an operator sees.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rocmforge.api.http.keys import Keyring
from rocmforge.fleet.fleet import Fleet
from rocmforge.served_models import served_models
from rocmforge.settings import Settings
from rocmforge.wiring import build_fleet, build_web_app
from tests.e2e.server.test_several_models import write_speaking
from tests.support.files.device_tree import DeviceTree
from tests.support.models.hip import platform_options, started_platform

TIMEOUT_S = 240.0  # for what takes a few seconds on an idle machine
STEP_TIMEOUT_S = 8.0  # for what takes 0.1 s on an idle machine
TOKENS = 48  # so many that a fault comes before the last, however busy the machine is
BEGUN = 3  # steps of a request before something happens
DEVICE = "0000:00:00.0"  # of the host platform
ECC, UNKNOWN = 214, 999  # hipErrorECCNotCorrectable, hipErrorUnknown


@pytest.fixture(scope="module", autouse=True)
def fault(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The file of faults of the checking library, which engine processes inherit."""
    options = platform_options(request)
    if options.platform != "host":
        pytest.skip("a fault would end the use of a GPU")
    with started_platform(options), pytest.MonkeyPatch.context() as patch:
        file = tmp_path_factory.mktemp("faults") / "fault"
        patch.setenv("RF_HOST_FAULT", str(file))
        yield file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that speaks."""
    return write_speaking(tmp_path_factory.mktemp("failures"), "llama")


@dataclass
class World:
    """A server without its socket, and the machine it believes to be on."""

    fleet: Fleet
    client: httpx.AsyncClient
    fault: Path

    async def complete(self) -> list[Any]:
        """The events of a stream."""
        body = {
            "model": "tiny",
            "prompt": "once upon a time",
            "max_tokens": TOKENS,
            "seed": 7,
            "temperature": 1.0,
            "stream": True,
            "ignore_eos": True,
        }
        answer = await self.client.post("/v1/completions", json=body)
        lines = answer.text.splitlines() if answer.status_code == 200 else [f"data: {answer.text}"]
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
        return [json.loads(event) for event in events]

    async def disturbed(self, fault: str) -> list[Any]:
        """The events of a stream in whose middle a fault is planted."""
        before = self.steps
        asking = asyncio.create_task(self.complete())
        while self.steps < before + BEGUN:  # noqa: ASYNC110 - a status is polled
            await asyncio.sleep(0.001)
        await asyncio.to_thread(self.fault.write_text, fault)
        return await asking

    @property
    def steps(self) -> int:
        return self.fleet.models[0].entry.status.stats.totals.steps

    async def is_ready(self) -> bool:
        return (await self.client.get("/ready")).status_code == 200

    async def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = (await self.client.get("/health")).json()
        return answer

    async def metric(self, name: str, **labels: str) -> float:
        text = (await self.client.get("/metrics")).text
        samples = (s for f in text_string_to_metric_families(text) for s in f.samples)
        (value,) = [
            s.value for s in samples if s.name == name and labels.items() <= s.labels.items()
        ]
        return value


@asynccontextmanager
async def serving(model: Path, root: Path, fault: Path, **chosen: Any) -> AsyncIterator[World]:
    """A ready server on a device that works."""
    DeviceTree(root, DEVICE)
    settings = Settings(
        backend="hip",
        max_context=128,
        max_sequences=4,
        graphs="on",  # without a check at each of many loads
        served_model_name=("tiny",),
        step_timeout=STEP_TIMEOUT_S,
        insecure=True,
        no_page=True,
        **chosen,
    )
    fleet = build_fleet(served_models([str(model)], settings), settings, root)
    app = build_web_app(fleet, settings, Keyring())
    transport = httpx.ASGITransport(cast(Any, app))
    async with asyncio.timeout(TIMEOUT_S):
        try:
            await fleet.load_first(fleet.models[0].entry)
            url = "http://127.0.0.1"
            async with httpx.AsyncClient(transport=transport, base_url=url, timeout=None) as client:
                yield World(fleet, client, fault)
        finally:
            await fleet.stop()


def text_of(events: list[Any]) -> str:
    assert not [event for event in events if "error" in event], events
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


def test_with_resume_a_hang_and_an_error_of_memory_are_only_a_pause(
    model: Path, fault: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(model, tmp_path, fault, resume=True) as world:
            undisturbed = text_of(await world.complete())
            cases = (
                ("hang", "hang", "it gave no news for "),
                ("memory", str(ECC), "hipErrorECCNotCorrectable"),
            )
            for count, (name, planted, reason) in enumerate(cases, start=1):
                caplog.clear()
                assert text_of(await world.disturbed(planted)) == undisturbed, name
                health = await world.health()
                assert (health["status"], health["restarts"]) == ("ok", count)
                assert health["last_fault"] == name
                assert reason in health["last_error"]
                assert await world.metric("rocmforge_engine_faults_total", fault=name) == 1
                assert await world.metric("rocmforge_engine_restarts_total") == count
                told = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
                assert any(reason in line for line in told), told

    asyncio.run(test())


def test_a_device_that_keeps_failing_is_given_up_until_somebody_asks_again(
    model: Path, fault: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with serving(model, tmp_path, fault, restart_limit=1) as world:
            events = await world.disturbed(f"always {UNKNOWN}")
            assert events[-1]["error"]["code"] == "engine_died", "without --resume"
            while (await world.health())["engine"] != "failed":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert not await world.is_ready()
            health = await world.health()
            assert (health["status"], health["last_fault"]) == ("degraded", "lost")
            for part in ("ended 2 times", "hipErrorUnknown", "rocmforge doctor", "/models/load"):
                assert part in health["last_error"]
            assert "hipFree" not in health["last_error"], "what came first is told"
            refused = await world.complete()
            assert "hipErrorUnknown" in refused[-1]["error"]["message"]
            assert await world.metric("rocmforge_engine_faults_total", fault="lost") == 2
            os.unlink(fault)
            body = {"model": "tiny"}  # refused without an attempt in the first seconds
            while (await world.client.post("/models/load", json=body)).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            assert await world.is_ready()
            assert text_of(await world.complete())

    asyncio.run(test())
