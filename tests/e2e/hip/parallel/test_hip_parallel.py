"""One model on two devices: the same tokens as on one, and what happens when a rank fails.

On the host platform, which is the default, librccl.so checks that the ranks do the same things.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernels.builder import ROOT
from rocmforge.backend.protocol import LoadOptions, MasksLate, Runner
from rocmforge.backend.step import NO_ADAPTER, StepOutput
from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.ipc.params import FinishReason, SamplingParams, TokenEvent
from rocmforge.errors import ConfigurationError
from rocmforge.models.lora import AdapterSpec
from rocmforge.models.rope import RopeTables, load_rope_tables
from rocmforge_hip.backend import create
from rocmforge_hip.device.discovery import find_devices
from rocmforge_hip.device.platform import select_platform
from rocmforge_hip.parallel import processes
from rocmforge_hip.parallel.processes import RankFailed
from rocmforge_hip.run.trials import graph_check
from tests.backend.driving import Chunk, Driver, Want, make_step
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_adapters import TinyAdapter, write_adapter
from tests.data.models.text.tiny_encoders import ENCODERS, write_encoder
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.e2e.conftest import RANKS
from tests.support.engine.requests import asked
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import fitting, quantized, splittable, write_quantized
from tests.support.models.loading import load_file
from tests.support.processes.children import RANK, children

OPTIONS = LoadOptions(
    device=None,
    max_context=128,
    max_sequences=4,
    max_batched_tokens=24,
    kv_blocks=16,
    kv_dtype="auto",
    memory_utilization=0.5,
)
# Of log-probabilities: sums are made in another order, and rounded to halves for the next layer.
TOLERANCE = 0.02
TIMEOUT_S = 120.0  # for what takes a few seconds on an idle machine

pytestmark = pytest.mark.usefixtures("ranks")


def load(stack: ExitStack, model: Path, **changes: Any) -> Runner:
    runner = load_file(create(), model, replace(OPTIONS, **changes))
    return stack.enter_context(closing(runner))


def write_float(model: TinyModel, folder: Path) -> Path:
    return write_model(splittable(fitting(model)), folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny Llama."""
    return write_float(by_name("llama"), tmp_path)


@dataclass
class Transcript:
    """What a runner answered to a fixed sequence of steps."""

    tokens: list[int]
    logprobs: list[npt.NDArray[np.float32]]


def talk(runner: Runner) -> Transcript:
    """Prefills of many and of few tokens, decodes alone and beside a prefill, greedy and drawn."""
    driver = Driver(runner)
    said = Transcript([], [])

    def note(output: StepOutput) -> list[int]:
        tokens = output.token_ids.tolist()
        said.tokens.extend(tokens)
        return [int(token) for token in tokens]

    for tokens, start in ((PROMPT[:20], 0), (PROMPT[20:21], 20), (PROMPT[21:24], 21)):
        scored = [Want(target=target, num_logprobs=0) for target in range(0, 96, 7)]
        output = driver.run(Chunk(tokens=tokens, start=start, blocks=[3, 1], wants=scored))
        assert output.logprobs is not None
        said.logprobs.append(output.logprobs)
    draws = [Want(), *(Want(temperature=1.0, top_p=0.9, seed=seed) for seed in range(3))]
    drawn = note(driver.run(Chunk(tokens=PROMPT[24:34], start=24, blocks=[3, 1], wants=draws)))
    note(
        driver.run(
            Chunk(tokens=drawn[:1], start=34, blocks=[3, 1]),
            Chunk(tokens=PROMPT[:17], blocks=[2]),
        )
    )
    said.tokens += driver.greedy(PROMPT[:5], [4], 8)
    return said


def pipelined(runner: Runner, count: int) -> list[int]:
    """Greedy tokens with two steps in flight, each step's token known on the devices only."""
    size = runner.info.block_size
    runner.submit(make_step(0, [Chunk(tokens=PROMPT[:5], blocks=[6])], size))
    tokens = []
    for index in range(1, count):
        chunk = Chunk(tokens=[0], start=4 + index, blocks=[6], sources=[0])
        runner.submit(make_step(index, [chunk], size))
        tokens.append(int(runner.collect().token_ids[0]))
    return [*tokens, int(runner.collect().token_ids[0])]


def assert_agree(stack: ExitStack, model: Path, **changes: Any) -> None:
    alone = talk(load(stack, model, **changes))
    together = talk(load(stack, model, tensor_parallel=RANKS, **changes))
    for got, expected in zip(together.logprobs, alone.logprobs, strict=True):
        np.testing.assert_allclose(got, expected, atol=TOLERANCE)
    assert together.tokens == alone.tokens


@pytest.mark.parametrize("name", ["llama", "llama-bias-tied", "gemma3", "phi3", "muse-glimmer"])
def test_two_devices_give_the_tokens_of_one(name: str, stack: ExitStack, tmp_path: Path) -> None:
    assert_agree(stack, write_float(by_name(name), tmp_path))


@pytest.mark.parametrize("type_name", ["q8_0", "q6_k"])
def test_two_devices_split_quantised_matrices(
    type_name: str, stack: ExitStack, tmp_path: Path
) -> None:
    tiny = quantized(by_name("llama"), type_name)
    sizes = {"vocab_size": 96, "intermediate_size": 512, "num_attention_heads": 8}
    path = write_quantized(replace(tiny, config=tiny.config | sizes), type_name, tmp_path)
    assert_agree(stack, path, kv_dtype="int8")


@pytest.mark.parametrize("name", ["qwen3moe", "glm4moe", "gpt-oss", "glm4-moe-lite", "deepseek-v3"])
def test_two_devices_have_half_of_the_experts_each(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    assert_agree(stack, write_float(by_name(name), tmp_path))


def test_each_device_may_have_some_of_its_experts_on_the_host(
    stack: ExitStack, tmp_path: Path
) -> None:
    assert_agree(stack, write_float(by_name("qwen3moe"), tmp_path), device_experts=0.5)


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_two_devices_share_adapters(name: str, stack: ExitStack, tmp_path: Path) -> None:
    tiny = splittable(fitting(by_name(name)))
    path = write_model(tiny, tmp_path)
    adapter = write_adapter(tmp_path / "adapter.gguf", tiny, TinyAdapter())
    adapters = (AdapterSpec(name="adapter", path=str(adapter)),)
    found = []
    for devices in (1, RANKS):
        runner = load(stack, path, tensor_parallel=devices, adapters=adapters)
        driver = Driver(runner)
        chunk = Chunk(tokens=PROMPT[:20], blocks=[3, 1], adapter=0)
        one = Chunk(tokens=PROMPT[20:21], start=20, blocks=[3, 1], adapter=0)
        found.append(np.concatenate([driver.logprobs(chunk, [19]), driver.logprobs(one, [0])]))
        plain = driver.logprobs(replace(chunk, adapter=NO_ADAPTER), [19])
        assert np.abs(found[-1][0] - plain).max() > 10 * TOLERANCE
    np.testing.assert_allclose(found[1], found[0], atol=TOLERANCE)


def test_each_step_may_start_before_the_one_before_it_is_read(
    stack: ExitStack, model: Path
) -> None:
    expected = Driver(load(stack, model)).greedy(PROMPT[:5], [6], 6)
    runner = load(stack, model, tensor_parallel=RANKS)
    assert pipelined(runner, 6) == expected
    notes = "\n".join(runner.info.notes)
    assert all(device.info.name in notes for device in find_devices(select_platform())[:RANKS])


def test_devices_check_graphs_together_until_the_time_of_one_is_over(
    stack: ExitStack, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = pipelined(load(stack, model), 4)
    monkeypatch.setattr(graph_check, "MOST_SECONDS", 0.0)  # the other process does not see this
    runner = load(stack, model, tensor_parallel=RANKS, graphs="auto")
    assert runner.info.graphs == "checked"
    assert "1 of 8 checked" in runner.info.notes[-1]
    assert pipelined(runner, 4) == expected


def test_stale_replays_on_one_device_keep_all_from_using_graphs(
    stack: ExitStack, model: Path, host: HostPlatform | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host is None:
        pytest.skip("replays of a real device are what they are")
    expected = pipelined(load(stack, model), 4)
    monkeypatch.setenv("RF_HOST_STALE_REPLAYS", "9")  # this process has read it before
    runner = load(stack, model, tensor_parallel=RANKS, graphs="auto")
    assert runner.info.graphs == "failed"
    assert pipelined(runner, 4) == expected
    cost = Driver(runner).run(Chunk(tokens=[7], blocks=[1])).cost
    assert cost is not None
    assert cost.launches > 10


def test_two_devices_give_the_hidden_states_of_one(stack: ExitStack, model: Path) -> None:
    chunks = [Chunk(tokens=PROMPT[:17], blocks=[2], wants=[]), Chunk(tokens=PROMPT[:5], blocks=[4])]
    found = []
    for ranks in (1, RANKS):
        runner = load(stack, model, tensor_parallel=ranks)
        step = make_step(0, chunks, runner.info.block_size)
        runner.submit(replace(step, hidden_ranges=np.array([(0, 17)], np.int32)))
        hidden = runner.collect().hidden
        assert hidden is not None
        assert hidden.shape == (1, runner.info.hidden_size)
        found.append(hidden)
    np.testing.assert_allclose(found[1], found[0], atol=17 * TOLERANCE)
    assert np.abs(found[0]).max() > 4 * 17 * TOLERANCE


def masked_late(runner: Runner) -> list[int]:
    """A token that a late mask forces in a prefill, and what follows on the devices."""
    assert isinstance(runner, MasksLate)
    size, words = runner.info.block_size, -(-runner.info.vocab_size // 32)
    step = make_step(0, [Chunk(tokens=PROMPT[:20], blocks=[0])], size)
    room = np.full((1, words), 0xFFFFFFFF, np.uint32)
    late = replace(step.sampling, allowed=room, is_masked_later=True)
    runner.submit(replace(step, sampling=late))
    mask = np.zeros((1, words), np.uint32)
    mask[0, 2] = 1 << 3
    runner.constrain(mask)
    tokens = []
    for index in range(1, 4):
        chunk = Chunk(tokens=[0], start=19 + index, blocks=[0], sources=[0])
        runner.submit(make_step(index, [chunk], size))
        tokens.append(int(runner.collect().token_ids[0]))
    return [*tokens, int(runner.collect().token_ids[0])]


def test_masks_that_come_late_reach_every_rank(stack: ExitStack, model: Path) -> None:
    expected = masked_late(load(stack, model))
    assert expected[0] == 67
    assert masked_late(load(stack, model, tensor_parallel=RANKS)) == expected


def test_a_killed_rank_fails_the_step_by_name(stack: ExitStack, model: Path) -> None:
    runner = load(stack, model, tensor_parallel=RANKS, device="1,0")
    driver = Driver(runner)
    (worker,) = children(os.getpid(), RANK)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(RankFailed, match="ended with status -9") as caught:
        driver.run(Chunk(tokens=PROMPT[:20], blocks=[0]))
    assert (caught.value.rank, caught.value.device) == (1, 0)
    runner.close()
    assert children(os.getpid(), RANK) == []


def test_a_rank_that_cannot_start_fails_the_load_and_leaves_nothing(
    stack: ExitStack, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RankFailed, match="ended with status 1"):
        load(stack, model, tensor_parallel=RANKS)
    assert children(os.getpid(), RANK) == []


def test_an_error_that_a_rank_reports_is_passed_on(
    stack: ExitStack, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_and_remove(*args: Any) -> RopeTables:
        tables = load_rope_tables(*args)
        model.unlink()  # the other rank opens it after this one has read what it needs
        return tables

    monkeypatch.setattr("rocmforge_hip.load.loading.load_rope_tables", load_and_remove)
    with pytest.raises(RankFailed, match=model.name) as caught:
        load(stack, model, tensor_parallel=RANKS)
    assert (caught.value.rank, caught.value.device) == (1, 1)
    assert children(os.getpid(), RANK) == []


@pytest.fixture
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers fail where the parameter says."""
    monkeypatch.setattr(processes, "WORKER", "tests.support.fakes.failing_rank")
    monkeypatch.setenv("FAILING_RANK", request.param)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("failing", ["load"], indirect=True)
def test_the_other_ranks_do_not_wait_for_one_that_cannot_load(
    stack: ExitStack, model: Path
) -> None:
    with pytest.raises(RankFailed, match=r"Rank 1, .* device 1, failed: this device is too small"):
        load(stack, model, tensor_parallel=RANKS)


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("failing", ["step"], indirect=True)
def test_an_error_in_a_step_of_another_rank_is_raised_here(stack: ExitStack, model: Path) -> None:
    driver = Driver(load(stack, model, tensor_parallel=RANKS))
    with pytest.raises(RankFailed, match="hipGraphLaunch failed: this device is broken"):
        driver.run(Chunk(tokens=PROMPT[:20], blocks=[0]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_parallel": 9}, "needs as many devices, but there are "),
        ({"tensor_parallel": 2, "device": "0,0"}, "names a device twice"),
        ({"tensor_parallel": 2, "device": "0"}, "--device names 1"),
    ],
)
def test_wrong_numbers_of_devices_are_refused(
    changes: dict[str, Any], message: str, stack: ExitStack, model: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(stack, model, **changes)


def test_an_encoder_is_refused_on_several_devices(stack: ExitStack, tmp_path: Path) -> None:
    path = write_encoder(ENCODERS[0], tmp_path)
    with pytest.raises(ConfigurationError, match="encoder runs on one device"):
        load(stack, path, tensor_parallel=RANKS)


def engine_config(model: Path) -> EngineConfig:
    options = replace(OPTIONS, tensor_parallel=RANKS)
    return EngineConfig(
        backend="hip",
        model=model,
        options=options,
        step_timeout_s=TIMEOUT_S,
        restart_backoff_s=0.01,
    )


async def generate(engine: AsyncEngine, max_tokens: int) -> TokenEvent:
    """The last event of a request."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    handle = engine.submit(asked(PROMPT[:5], sampling))
    while True:
        for event in await handle.next():
            if event.finish_reason is not None:
                return event


def test_the_engine_starts_anew_after_a_killed_rank_and_ranks_end_with_it(model: Path) -> None:
    async def test() -> None:
        engine = AsyncEngine(engine_config(model))
        async with asyncio.timeout(TIMEOUT_S):
            await engine.start()
            try:
                await engine.wait_ready()
                assert engine.pid is not None
                (worker,) = children(engine.pid, RANK)
                os.kill(worker, signal.SIGKILL)
                event = await generate(engine, 100)
                assert event.finish_reason is FinishReason.DIED
                assert "Rank 1, which runs on device 1" in (event.error or "")
                await engine.wait_ready()
                assert (await generate(engine, 2)).finish_reason is FinishReason.LENGTH

                (worker,) = children(engine.pid, RANK)
                ended = os.pidfd_open(worker)
                os.kill(engine.pid, signal.SIGKILL)
                ready, _, _ = await asyncio.to_thread(select.select, [ended], [], [], TIMEOUT_S)
                assert ready == [ended]
                os.close(ended)
            finally:
                await engine.stop()

    asyncio.run(test())
