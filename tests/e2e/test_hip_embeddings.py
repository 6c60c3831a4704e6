"""Embeddings of decoder models on the HIP backend against the reference backend's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.backend.protocol import Float32Array, LoadOptions, Runner
from rocmforge.engine.core import EngineCore
from rocmforge.engine.messages import Submit
from rocmforge.engine.params import GenerateRequest, Pooling, SamplingParams
from rocmforge.engine.plan import SchedulerLimits
from rocmforge_hip.backend import create as create_hip
from rocmforge_hip.runner import HipRunner
from rocmforge_reference.backend import create as create_reference
from tests.api.tiny import VOCAB_SIZE, metadata
from tests.backend.driving import Chunk, Driver, Want, make_step
from tests.data.models.tiny_models import (
    PROMPT,
    by_name,
    gguf_metadata,
    gguf_tensors,
    write_model,
)
from tests.support.gguf_writer import write_gguf
from tests.support.hip import fitting, quantized, write_quantized
from tests.support.host_platform import HostPlatform
from tests.support.server import LiveServer

OPTIONS = LoadOptions(
    device=None,
    max_context=128,
    max_sequences=4,
    max_batched_tokens=24,
    kv_blocks=8,
    kv_dtype="auto",
    memory_utilization=0.9,
)
FLOAT_TOLERANCE = 0.01  # of a sum, relative to its largest element: halves in the cache
INT8_TOLERANCE = 0.05  # int8 activations too
TEXTS = ["hello world", "stop", "user hello hello world stop", "w"]

Array = npt.NDArray[Any]


@pytest.fixture
def stack(host: HostPlatform | None) -> Iterator[ExitStack]:
    """Closes runners at the end of a test, and then asks the checking library what it saw."""
    with ExitStack() as stack:
        yield stack
    if host:
        assert host.take_finding() == ""


def load(stack: ExitStack, model: Path) -> tuple[HipRunner, Runner]:
    """The model on the backend under test and on the reference."""
    runner = create_hip().load(model, OPTIONS, lambda *_: None)
    assert isinstance(runner, HipRunner)
    reference = create_reference().load(model, OPTIONS, lambda *_: None)
    return stack.enter_context(closing(runner)), stack.enter_context(closing(reference))


def sums(
    runner: Runner, step_id: int, ranges: Sequence[tuple[int, int]], *chunks: Chunk
) -> Float32Array:
    step = make_step(step_id, chunks, runner.info.block_size)
    runner.submit(replace(step, hidden_ranges=np.array(ranges, np.int32)))
    hidden = runner.collect().hidden
    assert hidden is not None
    assert hidden.shape == (len(ranges), runner.info.hidden_size)
    return hidden


def assert_sums_agree(ours: Runner, theirs: Runner, tolerance: float) -> None:
    """In a prompt alone, in its rest beside a sequence that draws, and in single tokens."""
    first = Chunk(tokens=PROMPT[:20], blocks=[3, 1, 6], wants=[])
    rest = Chunk(tokens=PROMPT[20:36], start=20, blocks=[3, 1, 6], wants=[])
    speaker = Chunk(tokens=PROMPT[:5], blocks=[2], wants=[Want(), Want(num_logprobs=3)])
    single = Chunk(tokens=PROMPT[36:37], start=36, blocks=[3, 1, 6], wants=[])
    other = Chunk(tokens=PROMPT[:1], blocks=[0], wants=[])
    steps: Sequence[tuple[Sequence[tuple[int, int]], Sequence[Chunk]]] = (
        ([(0, 20)], [first]),
        ([(5, 21)], [speaker, rest]),
        ([(0, 1), (1, 2)], [single, other]),
    )
    for step_id, (ranges, chunks) in enumerate(steps):
        got, expected = (sums(each, step_id, ranges, *chunks) for each in (ours, theirs))
        error = np.abs(got - expected).max() / np.abs(expected).max()
        assert error < tolerance, f"step {step_id}: {error:.4f}"


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3"])
def test_sums_of_hidden_states_are_the_references(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    assert_sums_agree(*load(stack, write_model(fitting(by_name(name)), tmp_path)), FLOAT_TOLERANCE)


def test_so_are_those_of_quantised_models(stack: ExitStack, tmp_path: Path) -> None:
    path = write_quantized(quantized(by_name("llama"), "q4_k"), "q4_k", tmp_path)
    assert_sums_agree(*load(stack, path), INT8_TOLERANCE)


def test_a_step_that_asks_for_states_copies_once_each_way(stack: ExitStack, tmp_path: Path) -> None:
    runner, _ = load(stack, write_model(fitting(by_name("llama")), tmp_path))
    driver = runner.driver

    def counted() -> tuple[int, int, int, int]:
        return driver.copies_to_device, driver.copies_to_host, driver.allocations, driver.waits

    for step_id, wants in enumerate(([], [Want(num_logprobs=2)])):
        before = counted()
        sums(runner, step_id, [(3, 20)], Chunk(tokens=PROMPT[:20], blocks=[1], wants=wants))
        assert tuple(np.subtract(counted(), before)) == (1, 1, 0, 1)


def test_states_do_not_overwrite_tokens_that_sampling_still_reads(
    stack: ExitStack, tmp_path: Path
) -> None:
    """They lie where the tokens of the step before lay, one of which is to be repeated here."""
    runner, _ = load(stack, write_model(fitting(by_name("llama")), tmp_path))
    prompt = Chunk(tokens=PROMPT[:6], blocks=[3], wants=[Want()] * 12)
    last = int(Driver(runner).run(prompt).token_ids[-1])
    eager = Want(presence_penalty=-100.0, seen={PROMPT[0]: 0})
    repeating = Chunk(tokens=[0], start=6, blocks=[3], sources=[11], wants=[eager])
    embedded = Chunk(tokens=PROMPT[:4], blocks=[5], wants=[])
    step = make_step(1, [repeating, embedded], runner.info.block_size)
    runner.submit(replace(step, hidden_ranges=np.array([(1, 5)], np.int32)))
    assert runner.collect().token_ids.tolist() == [last]


def pooled(runner: Runner, requests: Sequence[tuple[Sequence[int], Pooling]]) -> list[Array]:
    """Vectors from the engine, which cuts prompts, beside a sequence that generates."""
    clock = count(1)
    limits = SchedulerLimits(
        max_sequences=OPTIONS.max_sequences,
        max_batched_tokens=OPTIONS.max_batched_tokens,
        max_waiting=len(requests),
    )
    core = EngineCore(runner, limits, lambda: next(clock))
    samplings = [SamplingParams(max_tokens=0, pooling=kind) for _, kind in requests]
    samplings.append(SamplingParams(max_tokens=24, temperature=0.0))
    prompts = [*(prompt for prompt, _ in requests), PROMPT[:3]]
    commands = [
        Submit(
            request=GenerateRequest(
                request_id=index,
                prompt_ids=tuple(prompt),
                sampling=sampling,
                eos_ids=(),
                arrival_ns=0,
            )
        )
        for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]
    events = list(core.step(commands).events)
    while core.has_work:
        events += core.step().events
    found: Mapping[int, bytes] = {
        event.request_id: event.embedding for event in events if event.embedding is not None
    }
    return [np.frombuffer(found[index], np.float32) for index in range(len(requests))]


def test_vectors_of_the_engine_are_the_references(stack: ExitStack, tmp_path: Path) -> None:
    requests = [
        (PROMPT[:34], Pooling.MEAN),
        (PROMPT[3:37], Pooling.CLS),
        (PROMPT[:34], Pooling.LAST),
        (PROMPT[:1], Pooling.MEAN),
        (PROMPT[:40], Pooling.MEAN),
    ]
    runner, reference = load(stack, write_model(fitting(by_name("qwen3")), tmp_path))
    for got, expected in zip(pooled(runner, requests), pooled(reference, requests), strict=True):
        np.testing.assert_allclose(got, expected, atol=FLOAT_TOLERANCE * np.abs(expected).max())


def served_vectors(model: Path, backend: str, log: Path) -> Array:
    command = (
        *("-m", "rocmforge", "serve", str(model), "--port", "{port}", "--backend", backend),
        *("--max-context", "64", "--max-sequences", "4", "--max-batched-tokens", "32"),
    )
    with LiveServer(command, log) as server:
        answer = httpx.post(
            f"{server.url}/v1/embeddings",
            json={"model": "tiny", "input": TEXTS},
            timeout=60.0,
        )
    assert answer.status_code == 200, answer.text
    return np.array([row["embedding"] for row in answer.json()["data"]])


def test_the_endpoint_gives_the_references_vectors(stack: ExitStack, tmp_path: Path) -> None:
    recipe = fitting(by_name("llama"))
    recipe = replace(recipe, config=recipe.config | {"vocab_size": VOCAB_SIZE})
    tokenizer = metadata()
    tokenizer["tokenizer.ggml.token_type"] = np.array(tokenizer["tokenizer.ggml.token_type"], "i4")
    keys = gguf_metadata(recipe) | tokenizer | {"general.name": "tiny"}
    model = write_gguf(tmp_path / "tiny.gguf", keys, gguf_tensors(recipe))
    got, expected = (
        served_vectors(model, backend, tmp_path / backend) for backend in ("hip", "reference")
    )
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-5)
    assert (got * expected).sum(axis=1).min() > 0.9999
    assert (got @ expected.T)[~np.eye(len(TEXTS), dtype=bool)].max() < 0.99
