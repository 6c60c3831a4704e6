"""The verifier with real processes: a right device, a wrong one, and what it may never hold up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.verifier import REASONS, ProofConfig, Verifier
from rocmforge.engine.ipc.messages import RecordSteps
from rocmforge.engine.ipc.params import FinishReason, SamplingParams, TokenEvent
from rocmforge.engine.ipc.status import EngineState, ProofStatus
from rocmforge.engine.proof.bundle import read_bundle
from rocmforge.engine.proof.messages import BundlePolicy
from rocmforge.errors import NotReady
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.requests import asked
from tests.support.models.options import SMALL

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0
ERRING = "tests.support.fakes.erring_backend"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(by_name("llama"), tmp_path_factory.mktemp("model"))


def proof(folder: Path | None = None, *, keeps_tokens: bool = False) -> ProofConfig:
    bundles = None
    if folder is not None:
        bundles = BundlePolicy(folder=str(folder), keeps_tokens=keeps_tokens)
    return ProofConfig(rate=1.0, seconds=60.0, tolerance=3.0, is_strict=True, bundles=bundles)


async def answer(
    engine: AsyncEngine, number: int, tokens: int = 50, num_logprobs: int = -1
) -> list[TokenEvent]:
    sampling = SamplingParams(max_tokens=tokens, seed=number, num_logprobs=num_logprobs)
    handle = engine.submit(asked(list(PROMPT[: 5 + number]), sampling))
    events: list[TokenEvent] = []
    while not events or events[-1].finish_reason is None:
        events += await handle.next()
    return events


async def until(verifier: Verifier, is_so: Callable[[ProofStatus], bool]) -> ProofStatus:
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so(verifier.status):  # noqa: ASYNC110 - others ask for it when they like
            await asyncio.sleep(0.02)
    return verifier.status


def run(
    model: Path,
    config: ProofConfig,
    test: Callable[[AsyncEngine, Verifier], Awaitable[None]],
    backend: str = "reference",
) -> None:
    async def served() -> None:
        verifier = Verifier(config)
        engine = AsyncEngine(
            EngineConfig(backend=backend, model=model, options=SMALL), None, verifier
        )
        await engine.start()
        await engine.wait_ready()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await test(engine, verifier)
        finally:
            await engine.stop()
        assert not verifier.status.is_running

    asyncio.run(served())


def test_a_right_device_is_verified_and_raises_no_alarm(model: Path) -> None:
    async def test(engine: AsyncEngine, verifier: Verifier) -> None:
        # All in one stretch: the engine may be ahead of what it hears of the next.
        for number in range(4):
            plain = await answer(engine, number, tokens=20)
            assert all(event.logprobs is None for event in plain), "nobody asked for them"
        asked_for = await answer(engine, 4, tokens=20, num_logprobs=2)
        assert {len(each.top) for event in asked_for for each in event.logprobs or ()} == {2}
        status = await until(verifier, lambda status: status.samples == 5)
        assert (status.tokens, status.agreeing) == (100, 100)
        assert status.error < 1e-5
        assert (status.alarm, status.problem) == (None, None)
        assert sum(count for _, count in status.dropped) == 0
        assert engine.status.state is EngineState.READY

    run(model, proof(), test)


def test_a_verifier_gets_what_nobody_else_wants(model: Path) -> None:
    async def test(engine: AsyncEngine, verifier: Verifier) -> None:
        await until(verifier, lambda status: status.is_running)
        assert verifier._process is not None
        pid = verifier._process.pid
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        adjusted = Path(f"/proc/{pid}/oom_score_adj")
        assert await asyncio.to_thread(adjusted.read_text, "ascii") == "1000\n"

    run(model, proof(), test)


def test_a_layer_that_gives_one_percent_too_much_is_found_within_200_tokens(
    model: Path, tmp_path: Path
) -> None:
    async def test(engine: AsyncEngine, verifier: Verifier) -> None:
        for number in range(4):
            await answer(engine, number)
        status = await until(verifier, lambda status: status.alarm is not None)
        assert status.tokens <= 200
        assert "times what rounding explains" in str(status.alarm)
        assert engine.status.state is EngineState.DISTRUSTED
        with pytest.raises(NotReady, match="distrusted"):
            await answer(engine, 5)
        assert status.bundle is not None
        bundle = read_bundle(Path(status.bundle))
        assert bundle.tokens is None
        assert all(place.ids is None and place.drawn is None for place in bundle.places)

    run(model, proof(tmp_path / "bundles"), test, f"{ERRING}:create")


def test_a_nan_is_an_alarm_at_once_and_a_bundle_has_its_tokens_if_it_may(
    model: Path, tmp_path: Path
) -> None:
    async def test(engine: AsyncEngine, verifier: Verifier) -> None:
        events = await answer(engine, 0)
        assert events[-1].finish_reason is FinishReason.ERROR
        assert verifier.status.alarm is not None, "before anything is computed again"
        status = await until(verifier, lambda status: status.bundle is not None)
        bundle = read_bundle(Path(str(status.bundle)))
        assert bundle.is_broken
        assert bundle.tokens is not None
        assert tuple(bundle.tokens[:5]) == PROMPT[:5]

    run(model, proof(tmp_path, keeps_tokens=True), test, f"{ERRING}:create_nan")


def test_no_request_is_recorded_that_could_not_be_computed_again_soon(model: Path) -> None:
    async def test(engine: AsyncEngine, verifier: Verifier) -> None:
        await until(verifier, lambda status: status.is_running)

        def opens(number: int, tokens: int) -> bool:
            request = structs.replace(
                asked([1] * tokens, SamplingParams(max_tokens=2)), request_id=number
            )
            told: list[RecordSteps] = []
            verifier.open(request, told.append)
            verifier.note(TokenEvent(request_id=number, token_ids=(1,)))  # it does not wait
            return bool(told)

        assert not opens(1, SMALL.max_context), "there is no room for a token behind it"
        assert sum(opens(100 + number, 3) for number in range(20)) == 8
        assert dict(verifier.status.dropped) == dict.fromkeys(REASONS, 0) | {"queue": 12, "long": 1}
        verifier.close(100)
        assert opens(200, 3), "another has ended"

    run(model, proof(), test)


def test_a_full_queue_drops_samples_and_counts_them(model: Path) -> None:
    async def test(engine: AsyncEngine, verifier: Verifier) -> None:
        await asyncio.gather(*(answer(engine, number % 8, tokens=2) for number in range(40)))
        dropped = dict(verifier.status.dropped)["queue"]
        assert dropped > 0
        await until(verifier, lambda status: status.samples + dropped == 40)

    run(model, proof(), test)


def test_a_verifier_that_cannot_load_is_told_of_and_holds_nothing_up(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_with_nothing(self: Verifier, name: str, *rest: object) -> None:
        begin(self, "/nowhere.gguf", None, *rest[1:])  # type: ignore[arg-type]

    begin = Verifier.begin
    monkeypatch.setattr(Verifier, "begin", begin_with_nothing)

    async def test(engine: AsyncEngine, verifier: Verifier) -> None:
        status = await until(verifier, lambda status: status.problem is not None)
        assert "/nowhere.gguf" in str(status.problem)
        await answer(engine, 0)
        assert dict(verifier.status.dropped)["stopped"] == 1
        assert engine.status.state is EngineState.READY

    run(model, proof(), test)


def test_a_verifier_that_dies_is_told_of_and_the_engine_serves_on(model: Path) -> None:
    async def test(engine: AsyncEngine, verifier: Verifier) -> None:
        await until(verifier, lambda status: status.is_running)
        assert verifier._process is not None
        verifier._process.kill("was killed by the test")
        await answer(engine, 0)
        await until(verifier, lambda status: status.problem is not None)
        await answer(engine, 1)
        assert engine.status.state is EngineState.READY

    run(model, proof(), test)


def test_drawn_and_other_requests_get_the_same_tokens(model: Path) -> None:
    found: list[list[int]] = []

    async def test(engine: AsyncEngine, verifier: Verifier) -> None:
        events = await answer(engine, 3)
        found.append([token for event in events for token in event.token_ids])

    for rate in (0.0, 1.0):
        run(model, replace(proof(), rate=rate), test)
    assert found[0] == found[1]
