"""Models with states on several devices: what they say is what one device says.

On the host platform, which is the default, the ranks are checked as in `test_hip_parallel`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.choices import Switch
from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.ipc.params import SamplingParams, TokenLogprob
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.errors import UnsupportedArchitecture
from rocmforge_hip.backend import create
from rocmforge_hip.device.discovery import find_devices
from rocmforge_hip.device.platform import select_platform
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.data.models.text.tiny_recurrent import LONG_PROMPT, larger_delta
from tests.e2e.conftest import RANKS
from tests.support.engine.conversations import talk as converse
from tests.support.engine.core import Request, reports
from tests.support.engine.drafting import make_drafting_core
from tests.support.engine.requests import asked
from tests.support.engine.spans import answers
from tests.support.models.hip import write_quantized
from tests.support.models.loading import estimate_file, load_file
from tests.support.models.near_ties import NEAR_TIE, assert_same
from tests.support.models.options import SMALL
from tests.support.models.state_models import CUT, divisible, write_states
from tests.support.processes.children import RANK, children

pytestmark = pytest.mark.usefixtures("ranks")

OPTIONS: Final = replace(SMALL, memory_utilization=0.5)
# With 72 tokens behind them they take three blocks or four, of which there are too few.
PROMPTS: Final = (PROMPT[:30], PROMPT[7:9], PROMPT[20:39], PROMPT[:1], PROMPT[:28])
GREEDY: Final = SamplingParams(max_tokens=24, temperature=0, num_logprobs=2, ignore_eos=True)
TIMEOUT_S: Final = 240.0  # for what takes a few seconds on an idle machine
TOLERANCE: Final = 0.02
"""Of log-probabilities: sums are made in another order, and rounded to halves for what is next."""
NAMES: Final = (
    *("qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe"),
    *("nemotron_h", "nemotron_h_moe", "nemotron_h_moe-latent"),
    *("granitehybrid", "granitehybrid-dense"),
)


@dataclass
class Said:
    """What a runner answered to a fixed sequence of steps."""

    logprobs: npt.NDArray[np.float32]
    tokens: list[int]


def load_with(stack: ExitStack, model: Path, options: LoadOptions) -> Runner:
    return stack.enter_context(closing(load_file(create(), model, options)))


def load(stack: ExitStack, model: Path, **changes: Any) -> Runner:
    return load_with(stack, model, replace(OPTIONS, **changes))


def talk(runner: Runner) -> Said:
    """A prompt in one piece and cut, beside another one, then tokens one by one."""
    driver, blocks = Driver(runner), [3, 1, 2]
    whole = Chunk(tokens=LONG_PROMPT[:23], blocks=blocks, state_slot=1)
    found = [driver.logprobs(whole, (5, 22))]
    for start, end in ((0, 1), (1, 9), (9, 21)):
        tokens = LONG_PROMPT[start:end]
        driver.run(Chunk(tokens=tokens, start=start, blocks=blocks, state_slot=3))
    last = Chunk(tokens=LONG_PROMPT[21:23], start=21, blocks=blocks, state_slot=3)
    found.append(driver.logprobs(last, (1,)))
    scored = [Want(target=target, num_logprobs=0) for target in range(0, 96, 7)]
    one = Chunk(tokens=(7,), start=23, blocks=blocks, state_slot=3, wants=scored)
    other = Chunk(tokens=LONG_PROMPT[40:57], blocks=[4, 5], state_slot=0, wants=scored)
    beside = driver.run(one, other).logprobs
    assert beside is not None
    values = np.concatenate([np.concatenate(found).reshape(-1), beside])
    return Said(values, driver.greedy(LONG_PROMPT[:5], [6], 5))


def assert_agree(stack: ExitStack, model: Path, ranks: int = RANKS, **changes: Any) -> None:
    alone = talk(load(stack, model, **changes))
    together = talk(load(stack, model, tensor_parallel=ranks, **changes))
    print(np.abs(together.logprobs - alone.logprobs).max(), alone.logprobs.std())
    np.testing.assert_allclose(together.logprobs, alone.logprobs, atol=TOLERANCE)
    assert together.tokens == alone.tokens


@pytest.mark.parametrize("name", NAMES)
def test_two_devices_give_the_tokens_of_one(name: str, stack: ExitStack, tmp_path: Path) -> None:
    assert_agree(stack, write_model(divisible(by_name(name)), tmp_path))


@pytest.mark.parametrize("name", ["qwen35", "nemotron_h_moe", "lfm2", "granitehybrid-dense"])
def test_four_devices_give_the_tokens_of_one(name: str, stack: ExitStack, tmp_path: Path) -> None:
    if len(find_devices(select_platform())) < 4:
        pytest.skip("there are not 4 devices")
    assert_agree(stack, write_model(divisible(by_name(name)), tmp_path), 4)


@pytest.mark.parametrize("name", ["qwen35", "qwen3next", "nemotron_h", "lfm2"])
def test_two_devices_split_quantised_matrices(name: str, stack: ExitStack, tmp_path: Path) -> None:
    assert_agree(stack, write_states(divisible(by_name(name)), tmp_path, "q8_0"))


def test_a_shared_expert_that_does_not_divide_is_whole_on_each_device(
    stack: ExitStack, tmp_path: Path
) -> None:
    """Its rows have three blocks of 32, of which two devices cannot have as many."""
    sizes = CUT | {"shared_expert_intermediate_size": 96}
    model = larger_delta(by_name("qwen3next"), delta_heads=(4, 16), **sizes)
    assert_agree(stack, write_model(replace(model, seed=412), tmp_path))


def test_super_blocks_of_tiled_heads_are_split(stack: ExitStack, tmp_path: Path) -> None:
    """A device has two heads of each round, which are one super-block of the output matrix."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 96}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    model = larger_delta(by_name("qwen35"), 128, delta_heads=(4, 8), **sizes, **heads)
    path = write_quantized(model, "q4_k", tmp_path, {"conv1d": "f32"})
    assert_agree(stack, path)


def test_two_devices_split_a_folder(stack: ExitStack, tmp_path: Path) -> None:
    """One whose queries, keys, values and gates stand between each other."""
    assert_agree(stack, write_folder(divisible(by_name("qwen3next")), tmp_path / "folder"))


@pytest.mark.parametrize(
    ("name", "length", "graphs"),
    [
        ("lfm2", 72, "on"),
        ("qwen35", 14, "on"),
        ("nemotron_h", 14, "auto"),
        ("granitehybrid-dense", 14, "on"),
    ],
)
def test_answers_through_the_engine_are_those_of_one_device(
    name: str, length: int, graphs: Switch, stack: ExitStack, tmp_path: Path
) -> None:
    """Mixed steps, two in flight, graphs, slots used before, of long answers preempted ones."""
    path = write_model(divisible(by_name(name)), tmp_path)
    options = replace(OPTIONS, kv_blocks=8, graphs=graphs)
    sampling, found = msgspec.structs.replace(GREEDY, max_tokens=length), []
    for ranks in (1, RANKS):
        own = replace(options, tensor_parallel=ranks)
        runner = load_with(stack, path, own)
        assert runner.info.graphs == ("checked" if graphs == "auto" else "unchecked")
        given, stats = answers(runner, own, PROMPTS, sampling)
        assert stats.totals.preemptions > 0 or length < 72
        found.append([each.logprobs for each in given])
    requests = [(prompt, sampling) for prompt in PROMPTS]
    assert_same(found[1], found[0], requests, NEAR_TIE / 2)  # no drafts are checked


def test_answers_that_go_on_from_snapshots_are_those_without(
    stack: ExitStack, tmp_path: Path
) -> None:
    path = write_model(divisible(by_name("lfm2")), tmp_path)
    options = replace(OPTIONS, max_context=256, kv_blocks=32, max_sequences=2)
    together = replace(options, tensor_parallel=RANKS)
    expected, found = converse(load_with(stack, path, together), together, LONG_PROMPT)
    assert found == [0, 0, 0, 0]
    with_room = replace(together, state_snapshots=6)
    runner = load_with(stack, path, with_room)
    assert (runner.info.state_slots, runner.info.snapshots) == (8, 6)
    assert converse(runner, with_room, LONG_PROMPT) == (expected, [0, 96, 64, 64])


def answer(runner: Runner, requests: Sequence[Request]) -> tuple[list[list[TokenLogprob]], int]:
    """The tokens of each request, and how many draft tokens were accepted."""
    found: list[list[TokenLogprob]] = [[] for _ in requests]
    stats = EngineStats()
    for report in reports(make_drafting_core(runner, None), requests):
        stats = report.stats
        for event in report.events:
            assert event.error is None
            found[event.request_id] += event.logprobs or ()
    return found, stats.totals.accepted_tokens


@pytest.mark.parametrize("name", ["qwen35", "nemotron_h"])
def test_drafts_by_prompt_lookup_give_the_tokens_of_one_device_without(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    recipe = divisible(by_name(name))
    few_tokens = replace(recipe, config=recipe.config | {"vocab_size": 16})
    shapes = {
        key: (16, *shape[1:]) if shape[0] == 96 else shape for key, shape in recipe.shapes.items()
    }
    path = write_model(replace(few_tokens, shapes=shapes), tmp_path)
    prompts = [tuple((7 * i * k) % 12 for i in range(20)) for k in range(1, 7)]
    plain = msgspec.structs.replace(GREEDY, max_tokens=24)
    looked_up = msgspec.structs.replace(plain, prompt_lookup_tokens=5)
    without = [(prompt, plain) for prompt in prompts]
    changes = {"max_sequences": 8, "max_batched_tokens": 64, "kv_blocks": 64, "draft_tokens": 5}
    expected, _ = answer(load(stack, path, **changes), without)
    runner = load(stack, path, tensor_parallel=RANKS, **changes)
    drafted, accepted = answer(runner, [(prompt, looked_up) for prompt in prompts])
    assert_same(drafted, expected, without)
    assert accepted > 0


def test_a_request_goes_on_after_a_killed_rank_with_the_same_tokens(tmp_path: Path) -> None:
    """Its states are gone on both devices, and are computed again."""
    config = EngineConfig(
        backend="hip",
        model=write_model(divisible(by_name("lfm2")), tmp_path),
        options=replace(OPTIONS, tensor_parallel=RANKS),
        resume=True,
        restart_backoff_s=0.01,
    )

    async def ask(engine: AsyncEngine, *, disturbed: bool) -> list[int]:
        handle, tokens = engine.submit(asked(PROMPT[:5], GREEDY)), list[int]()
        while len(tokens) < GREEDY.max_tokens:
            for event in await handle.next():
                assert event.error is None
                tokens += event.token_ids
            if disturbed:
                assert engine.pid is not None
                (worker,) = children(engine.pid, RANK)
                os.kill(worker, signal.SIGKILL)
                disturbed = False
        return tokens

    async def test() -> None:
        engine = AsyncEngine(config)
        async with asyncio.timeout(TIMEOUT_S):
            await engine.start()
            try:
                await engine.wait_ready()
                first = engine.pid
                expected = await ask(engine, disturbed=False)
                assert await ask(engine, disturbed=True) == expected
                assert engine.pid != first
            finally:
                await engine.stop()

    asyncio.run(test())


@pytest.mark.parametrize("name", ["qwen35moe", "nemotron_h_moe", "lfm2"])
def test_the_plan_is_what_each_device_has(name: str, stack: ExitStack, tmp_path: Path) -> None:
    path = write_model(divisible(by_name(name)), tmp_path)
    options = replace(OPTIONS, tensor_parallel=RANKS)
    plan, alone = (estimate_file(create(), path, each, None) for each in (options, OPTIONS))
    info = load(stack, path, tensor_parallel=RANKS).info
    assert plan.weights * RANKS == info.weights_bytes
    assert plan.states * RANKS == info.state_bytes == alone.states
    assert plan.kv_block * info.num_blocks * RANKS == info.kv_bytes


def test_heads_that_kernels_do_not_fit_are_refused_before_anything_is_loaded(
    stack: ExitStack, tmp_path: Path
) -> None:
    path = write_model(larger_delta(by_name("qwen35"), delta_heads=(2, 4), **CUT), tmp_path)
    with pytest.raises(UnsupportedArchitecture, match="2 heads of values on each of 2 devices"):
        load(stack, path, tensor_parallel=RANKS)
