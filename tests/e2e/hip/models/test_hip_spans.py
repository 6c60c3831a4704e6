"""Rows of embeddings in a prompt, on the HIP backend.

Rows of the model's own table must give what the tokens give, to the last bit: they go to the same
place on the device.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.ipc.params import FinishReason, SamplingParams, TokenEvent
from rocmforge.engine.ipc.prompt import Prompt
from rocmforge_hip.backend import create
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.requests import asked
from tests.support.engine.spans import PLACES, PROMPTS, answers, begun_with, embedded
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import fitting, splittable
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip

SAMPLING = SamplingParams(max_tokens=32, temperature=0.0, num_logprobs=2)
TIMEOUT_S = 120.0  # for what takes a few seconds on an idle machine


def in_rows(model: TinyModel) -> list[Prompt]:
    """The prompts with rows of the model's table in these places."""
    table = begun_with(model)
    return [embedded(ids, table, places) for ids, places in zip(PROMPTS, PLACES, strict=True)]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_rows_of_the_table_give_what_their_tokens_give(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    """In chunks, from shared blocks, and after preemption."""
    model, options = fitting(by_name(name)), replace(SMALL, kv_blocks=6)
    runner = load_hip(stack, write_model(model, tmp_path), options)
    expected, _ = answers(runner, options, PROMPTS, SAMPLING)
    got, stats = answers(runner, options, in_rows(model), SAMPLING)
    assert got == expected
    assert stats.totals.preemptions > 0
    assert stats.totals.prefix_hit_tokens > 0


def test_a_chunk_of_one_row_is_no_decode(stack: ExitStack, tmp_path: Path) -> None:
    """A graph of a decode has no place for its row."""
    model = fitting(by_name("llama"))
    runner = load_hip(stack, write_model(model, tmp_path))
    end = SMALL.max_batched_tokens
    prompt = embedded(PROMPT[: end + 1], begun_with(model), [range(end, end + 1)])
    (expected,), _ = answers(runner, SMALL, [PROMPT[: end + 1]], SAMPLING)
    (got,), _ = answers(runner, SMALL, [prompt], SAMPLING)
    assert got.tokens == expected.tokens
    # Attention over a context is not split as in a graph.
    np.testing.assert_allclose(
        [each.logprob for each in got.logprobs],
        [each.logprob for each in expected.logprobs],
        atol=1e-3,
    )


def test_prompts_without_embeddings_cost_nothing_more(stack: ExitStack, tmp_path: Path) -> None:
    """Neither a copy nor pinned memory; with them it is one copy for each run of rows."""
    model = fitting(by_name("llama"))
    runner = load_hip(stack, write_model(model, tmp_path))
    sampling = SamplingParams(max_tokens=1, temperature=0.0)

    def count_copies(prompt: Prompt | tuple[int, ...]) -> int:
        before = runner.driver.copies_to_device
        answers(runner, SMALL, [prompt], sampling)
        return runner.driver.copies_to_device - before

    table = begun_with(model)
    assert count_copies(PROMPT[:20]) == 0
    assert not runner._rows._buffers
    assert count_copies(embedded(PROMPT[:20], table, [range(2, 9)])) == 1
    assert count_copies(embedded(PROMPT[:20], table, [range(2, 9), range(9, 10)])) == 1
    assert count_copies(embedded(PROMPT[:20], table, [range(2, 9), range(12, 20)])) == 2


@pytest.mark.slow
def test_two_devices_compute_on_the_same_rows(ranks: int, stack: ExitStack, tmp_path: Path) -> None:
    model = splittable(fitting(by_name("llama")))
    options = replace(SMALL, tensor_parallel=ranks, memory_utilization=0.5)
    runner = load_file(create(), write_model(model, tmp_path), options)
    with closing(runner):
        expected, _ = answers(runner, options, PROMPTS, SAMPLING)
        got, _ = answers(runner, options, in_rows(model), SAMPLING)
    assert got == expected


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hip", "reference"])
def test_another_engine_process_goes_on_behind_the_rows(
    backend: str, host: HostPlatform | None, tmp_path: Path
) -> None:
    model = fitting(by_name("llama"))
    config = EngineConfig(
        backend=backend,
        model=write_model(model, tmp_path),
        options=SMALL,
        restart_backoff_s=0.01,
        resume=True,
    )
    prompt = embedded(PROMPT, begun_with(model), [range(5, 30)])

    async def read(engine: AsyncEngine, *, kill: bool) -> list[TokenEvent]:
        sampling = SamplingParams(max_tokens=60, temperature=0.0, num_logprobs=0)
        handle = engine.submit(asked(prompt, sampling))
        events: list[TokenEvent] = []
        while not events or events[-1].finish_reason is None:
            events += await handle.next()
            if kill and any(event.token_ids for event in events):
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
                kill = False
        return events

    async def test() -> None:
        engine = AsyncEngine(config)
        async with asyncio.timeout(TIMEOUT_S):
            await engine.start()
            try:
                await engine.wait_ready()
                whole = await read(engine, kill=False)
                resumed = await read(engine, kill=True)
                while not engine.status.restarts:  # noqa: ASYNC110 - a status is polled
                    await asyncio.sleep(0.01)
                assert engine.status.restarts == 1
            finally:
                await engine.stop()
        assert resumed[-1].finish_reason is FinishReason.LENGTH
        for events in (whole, resumed):
            assert sum(len(event.token_ids) for event in events) == 60
        assert _tokens(resumed) == _tokens(whole)

    asyncio.run(test())


def _tokens(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]
