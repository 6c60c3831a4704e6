"""Drafts by a model's own predictor on the HIP backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.backend import registry
from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.backend.step import StepInput
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.errors import ConfigurationError
from rocmforge.opening import open_checkpoint
from rocmforge_hip.device.discovery import find_devices
from rocmforge_hip.device.platform import select_platform
from tests.backend.driving import Chunk, Want, make_step
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.data.models.text.tiny_recurrent import larger_delta
from tests.support.engine.core import tokens_of
from tests.support.engine.drafting import LIMITS
from tests.support.fakes.timed import Timed
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import fitting
from tests.support.models.loading import load_file
from tests.support.models.predicting import load_predicting, write_predicting

OPTIONS = LoadOptions(
    device=None,
    max_context=128,
    max_sequences=LIMITS.max_sequences,
    max_batched_tokens=LIMITS.max_batched_tokens,
    kv_blocks=16,
    kv_dtype="auto",
    memory_utilization=0.9,
    draft_tokens=4,
)
PROMPTS = [PROMPT[:start] for start in (5, 22, 33)]
SAMPLED = SamplingParams(max_tokens=12, temperature=0.9, top_p=0.95, draft_model_tokens=4)
GREEDY = msgspec.structs.replace(SAMPLED, temperature=0)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def load(stack: ExitStack, path: Path, backend: str = "hip", *, predicts: bool = True) -> Runner:
    loading = load_predicting if predicts else load_file
    return stack.enter_context(closing(loading(registry.create(backend), path, OPTIONS)))


def guesses(runner: Runner) -> npt.NDArray[np.float32]:
    """Log-probabilities of two guesses in a row behind a prompt in two chunks, [2, V]."""
    size, blocks = runner.info.block_size, [5, 2, 7]
    wants = [Want(target=target, num_logprobs=0) for target in range(97)]
    chunks = [Chunk(tokens=PROMPT[:19], blocks=blocks)]
    chunks += [Chunk(tokens=PROMPT[19:35], start=19, blocks=blocks)]
    chunks += [
        Chunk(tokens=[token], start=start, blocks=blocks, wants=wants)
        for start, token in ((35, PROMPT[35]), (36, 11))
    ]
    found = []
    for number, chunk in enumerate(chunks):
        runner.submit(replace(make_step(number, [chunk], size), predicts=number > 1))
        found.append(runner.collect().logprobs)
    return np.array(found[2:], np.float32)


@pytest.mark.parametrize("name", ["glm4moe", "deepseek-v3"])
def test_it_guesses_as_on_the_reference_backend(
    name: str, stack: ExitStack, tmp_path: Path, host: HostPlatform | None
) -> None:
    path = write_predicting(fitting(by_name(name)), tmp_path / "m.gguf")
    expected = guesses(load(stack, path, "reference"))
    found = guesses(load(stack, path))
    assert np.abs(found - expected).max() < 0.03 * expected.std()
    if host is not None:
        assert host.take_finding() == ""


@pytest.mark.parametrize("is_right", [False, True], ids=["wrong", "right"])
def test_the_tokens_are_those_without_it(
    is_right: bool, stack: ExitStack, tmp_path: Path, host: HostPlatform | None
) -> None:
    """With steps replayed from graphs.

    A step that checks draft tokens multiplies otherwise than one that decodes, so a near tie may
    end otherwise; hardly any does.
    """
    path = write_predicting(fitting(by_name("glm4moe")), tmp_path / "m.gguf", is_right=is_right)
    requests = [
        (prompt, msgspec.structs.replace(sampling, seed=i))
        for i, (prompt, sampling) in enumerate(zip(PROMPTS, [GREEDY, SAMPLED, GREEDY], strict=True))
    ]
    plain, _ = tokens_of(core_of(load(stack, path, predicts=False)), requests)
    drafted, stats = tokens_of(core_of(load(stack, path)), requests)
    same = [ours == theirs for ours, theirs in zip(drafted, plain, strict=True)]
    assert sum(same) >= len(same) - 1
    rate = stats.totals.predictor_accepted_tokens / stats.totals.predictor_drafted_tokens
    assert rate > 0.98 if is_right else rate < 0.9
    if host is not None:
        assert host.take_finding() == ""


@pytest.mark.parametrize("is_right", [False, True], ids=["wrong", "right"])
def test_states_go_back_to_the_last_accepted_token(
    is_right: bool, stack: ExitStack, tmp_path: Path, host: HostPlatform | None
) -> None:
    model = larger_delta(by_name("qwen35"))
    path = write_predicting(model, tmp_path / "m.gguf", is_right=is_right)
    few = tuple(
        (token, 100.0) for token in (3, 7, 11)
    )  # so that a wrong predictor is right at times
    sampling = SamplingParams(max_tokens=12, draft_model_tokens=4, logit_bias=few)
    requests = [(p, msgspec.structs.replace(sampling, seed=i)) for i, p in enumerate(PROMPTS)]
    plain, _ = tokens_of(core_of(load(stack, path, predicts=False)), requests)
    drafted, stats = tokens_of(core_of(load(stack, path)), requests)
    same = [ours == theirs for ours, theirs in zip(drafted, plain, strict=True)]
    assert sum(same) >= len(same) - 1
    rate = stats.totals.predictor_accepted_tokens / stats.totals.predictor_drafted_tokens
    assert rate > 0.98 if is_right else 0.1 < rate < 0.9
    assert stats.slots_used == 0
    if host is not None:
        assert host.take_finding() == ""


def test_its_steps_cost_what_they_read(
    stack: ExitStack, tmp_path: Path, host: HostPlatform | None
) -> None:
    """A guess reads one layer of four and the output matrix; other steps a little more."""
    path = write_predicting(larger_delta(by_name("qwen35")), tmp_path / "m.gguf")
    read = {}
    slot = np.ones(1, np.int32)
    for name, predicts in (("plain", False), ("model", True)):
        runner = load(stack, path, predicts=predicts)
        step = make_step(0, [Chunk(tokens=[5], blocks=[1])], runner.info.block_size)
        read[name] = bytes_read(runner, replace(step, state_reads=slot, state_writes=slot))
    read["guess"] = bytes_read(runner, replace(step, step_id=1, predicts=True))
    with open_checkpoint(path, predicts=True) as checkpoint:
        sizes = {name: tensor.nbytes for name, tensor in checkpoint.weights.items()}
    projection, layer = (
        sizes["predictor.projection"],
        sum(sizes[n] for n in sizes if "layers.4." in n),
    )
    assert projection < read["model"] - read["plain"] < projection + layer
    least = projection + layer + sizes["output"]
    assert least < read["guess"] < 1.3 * least


def bytes_read(runner: Runner, step: StepInput) -> int:
    runner.submit(step)
    cost = runner.collect().cost
    assert cost is not None
    return cost.bytes_read


def core_of(runner: Runner) -> EngineCore:
    """A core for which no step takes any time, so that drafting pays."""
    return EngineCore(Timed(runner), LIMITS, lambda: 1)


def test_it_is_refused_on_several_devices(tmp_path: Path, host: HostPlatform | None) -> None:
    if len(find_devices(select_platform())) < 2:
        pytest.skip("there is one device")
    path = write_predicting(fitting(by_name("glm4moe")), tmp_path / "m.gguf")
    options = replace(OPTIONS, tensor_parallel=2, device="0,1")
    with pytest.raises(ConfigurationError, match=r"predictor on one device"):
        load_predicting(registry.create("hip"), path, options)
