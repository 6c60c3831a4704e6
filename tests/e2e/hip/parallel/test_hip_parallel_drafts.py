"""Draft tokens and one model on two devices: the draft model is on the first of them.

On the host platform, which is the default, the ranks are checked as in `test_hip_parallel`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import pytest

from rocmforge.backend.protocol import Runner
from rocmforge.cli import main
from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.ipc.params import FinishReason, SamplingParams, TokenEvent, TokenLogprob
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.engine.loading import Loaded, load
from rocmforge_hip.device.discovery import find_devices
from rocmforge_hip.device.platform import select_platform
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.e2e.conftest import RANKS
from tests.support.engine.core import Request, reports
from tests.support.engine.drafting import LIMITS, make_drafting_core, rate
from tests.support.engine.requests import asked
from tests.support.engine.start import start_message
from tests.support.models.hip import fitting, splittable
from tests.support.models.near_ties import assert_same
from tests.support.models.options import SMALL
from tests.support.models.shallow import write_idle, write_shallow
from tests.support.processes.children import RANK, children

pytestmark = pytest.mark.usefixtures("ranks")

OPTIONS: Final = replace(
    SMALL,
    max_sequences=LIMITS.max_sequences,
    max_batched_tokens=LIMITS.max_batched_tokens,
    kv_blocks=64,
    memory_utilization=0.5,
)
PROMPTS: Final = [PROMPT[:end] for end in (5, 9, 14, 3, 22, 17)]
GREEDY: Final = SamplingParams(max_tokens=16, temperature=0, num_logprobs=2, draft_model_tokens=4)
DRAWN: Final = msgspec.structs.replace(GREEDY, temperature=0.9)
TIMEOUT_S: Final = 120.0  # for what takes a few seconds on an idle machine


@dataclass(frozen=True)
class Models:
    """A model, a draft model that says the same, and one whose tokens are seldom accepted."""

    model: Path
    draft: Path
    poor_draft: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    recipe = splittable(fitting(by_name("llama")))
    deep = write_model(replace(recipe, config=recipe.config | {"num_hidden_layers": 3}), folder)
    model = write_idle(deep, 2, folder / "model.gguf")
    return Models(
        model=model,
        draft=write_shallow(model, 2, folder / "draft.gguf"),
        poor_draft=write_shallow(model, 1, folder / "poor.gguf"),
    )


def load_both(
    stack: ExitStack, model: Path, draft: Path | None, *, ranks: int, device: str | None = None
) -> Loaded:
    """A model and its draft as the engine process loads them."""
    options = replace(OPTIONS, tensor_parallel=ranks, device=device)
    start = start_message("hip", str(model), options, None if draft is None else str(draft))
    return stack.enter_context(closing(load(start, lambda *_: None)))


def answer(
    runner: Runner, draft: Runner | None, requests: Sequence[Request]
) -> tuple[list[list[TokenLogprob]], EngineStats]:
    """The tokens of each request, with the most probable ones in their places."""
    answers: list[list[TokenLogprob]] = [[] for _ in requests]
    stats = EngineStats()
    for report in reports(make_drafting_core(runner, draft), requests):
        stats = report.stats
        for event in report.events:
            assert event.error is None
            answers[event.request_id] += event.logprobs or ()
    assert stats.blocks_used == 0
    return answers, stats


@pytest.mark.parametrize(
    ("name", "least", "most"), [("draft", 0.95, 1.0), ("poor_draft", 0.01, 0.95)]
)
def test_two_devices_with_a_draft_model_give_the_tokens_of_one_without(
    name: str, least: float, most: float, models: Models, stack: ExitStack
) -> None:
    requests = [
        (prompt, msgspec.structs.replace(sampling, seed=number))
        for number, (prompt, sampling) in enumerate(zip(PROMPTS, [GREEDY, DRAWN] * 3, strict=True))
    ]
    alone = load_both(stack, models.model, None, ranks=1)
    expected, _ = answer(alone.runner, None, requests)
    both = load_both(stack, models.model, getattr(models, name), ranks=RANKS)
    plain, stats = answer(both.runner, None, requests)
    assert_same(plain, expected, requests)
    assert stats.totals.model_drafted_tokens == 0
    drafted, stats = answer(both.runner, both.draft, requests)
    assert_same(drafted, expected, requests)
    assert least <= rate(stats) <= most
    assert stats.totals.model_accepted_tokens > 0


def test_two_devices_with_prompt_lookup_give_the_tokens_of_one_without(
    stack: ExitStack, tmp_path: Path
) -> None:
    recipe = splittable(fitting(by_name("llama")))
    few_tokens = replace(recipe, config=recipe.config | {"vocab_size": 16})
    model = write_model(few_tokens, tmp_path)
    prompts = [tuple((7 * i * k) % 12 for i in range(20)) for k in range(1, 7)]
    plain = msgspec.structs.replace(GREEDY, max_tokens=40, draft_model_tokens=0)
    without = [(prompt, plain) for prompt in prompts]
    requests = [
        (prompt, msgspec.structs.replace(plain, prompt_lookup_tokens=5)) for prompt in prompts
    ]
    alone = load_both(stack, model, None, ranks=1)
    expected, _ = answer(alone.runner, None, without)
    both = load_both(stack, model, None, ranks=RANKS)
    drafted, stats = answer(both.runner, None, requests)
    assert_same(drafted, expected, requests)
    assert stats.totals.accepted_tokens > 0


def test_the_draft_model_is_whole_on_the_first_device(models: Models, stack: ExitStack) -> None:
    both = load_both(stack, models.model, models.draft, ranks=RANKS, device="1,0")
    assert both.draft is not None
    first, second = (find_devices(select_platform())[index].properties.pci_id for index in (1, 0))
    assert both.runner.info.bus_ids == (first, second)
    assert both.draft.info.bus_ids == (first,)
    alone = load_both(stack, models.draft, None, ranks=1, device="1")
    assert both.draft.info.weights_bytes == alone.info.weights_bytes
    assert any(note.startswith("draft model  on device 1 ") for note in both.info.notes)


def test_the_plan_counts_the_draft_model_on_the_first_device(
    models: Models, capfd: pytest.CaptureFixture[str]
) -> None:
    def plan(*flags: str) -> dict[str, int]:
        command = ["inspect", str(models.model), "--plan", "--backend", "hip", "--json"]
        assert main([*command, "--max-context", "128", *flags]) == 0
        found: dict[str, int] = json.loads(capfd.readouterr().out)["estimate"]
        return found

    split = ("--tensor-parallel", str(RANKS))
    both = plan(*split, "--draft-model", str(models.draft))
    alone = plan(*split)
    command = ["inspect", str(models.draft), "--plan", "--backend", "hip", "--json"]
    assert main([*command, "--max-context", "128"]) == 0
    draft = json.loads(capfd.readouterr().out)["estimate"]
    for part in ("weights", "activations", "kv_block"):
        assert both[part] == alone[part] + draft[part]
    assert alone["kv_block"] < plan()["kv_block"], "each device has some of the heads"

    command = ["inspect", str(models.model), "--plan", "--backend", "hip", *split]
    assert main([*command, "--draft-model", str(models.draft)]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "of these, on the first device alone: " in shown
    for device in find_devices(select_platform())[:RANKS]:
        assert device.properties.pci_id in shown


async def ask(engine: AsyncEngine, max_tokens: int) -> list[TokenEvent]:
    """The events of a request with draft tokens."""
    sampling = msgspec.structs.replace(GREEDY, max_tokens=max_tokens)
    handle = engine.submit(asked(PROMPT[:5], sampling))
    events: list[TokenEvent] = []
    while not events or events[-1].finish_reason is None:
        events += await handle.next()
    return events


def test_an_engine_with_a_draft_model_comes_back_after_a_killed_rank(models: Models) -> None:
    async def test() -> None:
        engine = AsyncEngine(
            EngineConfig(
                backend="hip",
                model=models.model,
                draft=models.draft,
                options=replace(OPTIONS, tensor_parallel=RANKS),
                step_timeout_s=TIMEOUT_S,
                restart_backoff_s=0.01,
            )
        )
        async with asyncio.timeout(TIMEOUT_S):
            await engine.start()
            try:
                await engine.wait_ready()
                before = [token for event in await ask(engine, 16) for token in event.token_ids]
                assert engine.pid is not None
                (worker,) = children(engine.pid, RANK)
                os.kill(worker, signal.SIGKILL)
                last = (await ask(engine, 100))[-1]
                assert last.finish_reason is FinishReason.DIED
                assert "Rank 1, which runs on device 1" in (last.error or "")
                await engine.wait_ready()
                after = [token for event in await ask(engine, 16) for token in event.token_ids]
                assert after == before
                assert engine.status.stats.totals.model_drafted_tokens > 0
            finally:
                await engine.stop()

    asyncio.run(test())
