"""Embeddings of decoder models on the HIP backend against the reference backend's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import Runner
from rocmforge.engine.ipc.params import Pooling, SamplingParams
from rocmforge_hip.run.runner import HipRunner
from tests.api.tiny import VOCAB_SIZE, metadata
from tests.backend.driving import Chunk, Driver, Want, make_step
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors, write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.core import make_core, vectors_of
from tests.support.files.gguf_writer import write_gguf
from tests.support.models.hip import fitting, quantized, write_quantized
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip, load_reference
from tests.support.models.served_vectors import assert_served_vectors_are_the_references

OPTIONS = replace(SMALL, kv_blocks=8)
FLOAT_TOLERANCE = 0.01  # of a sum, relative to its largest element: halves in the cache
INT8_TOLERANCE = 0.05  # int8 activations too
TEXTS = ["hello world", "stop", "user hello hello world stop", "w"]


def load(stack: ExitStack, model: Path) -> tuple[HipRunner, Runner]:
    """The model on the backend under test and on the reference."""
    return load_hip(stack, model, OPTIONS), load_reference(stack, model, OPTIONS)


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


def test_a_step_that_asks_for_states_copies_results_alone(stack: ExitStack, tmp_path: Path) -> None:
    runner, _ = load(stack, write_model(fitting(by_name("llama")), tmp_path))
    driver = runner.driver

    def counted() -> tuple[int, int, int, int]:
        return driver.copies_to_device, driver.copies_to_host, driver.allocations, driver.waits

    for step_id, wants in enumerate(([], [Want(num_logprobs=2)])):
        before = counted()
        sums(runner, step_id, [(3, 20)], Chunk(tokens=PROMPT[:20], blocks=[1], wants=wants))
        assert tuple(np.subtract(counted(), before)) == (0, 1, 0, 1)


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


def pooled(runner: Runner, requests: Sequence[tuple[Sequence[int], Pooling]]) -> list[Float32Array]:
    """Vectors from the engine, which cuts prompts, beside a sequence that generates."""
    embedded = [(prompt, SamplingParams(max_tokens=0, pooling=kind)) for prompt, kind in requests]
    speaker = (PROMPT[:3], SamplingParams(max_tokens=24, temperature=0.0))
    return vectors_of(make_core(runner, OPTIONS), [*embedded, speaker])


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


@pytest.mark.usefixtures("stack")
def test_the_endpoint_gives_the_references_vectors(tmp_path: Path) -> None:
    recipe = fitting(by_name("llama"))
    recipe = replace(recipe, config=recipe.config | {"vocab_size": VOCAB_SIZE})
    tokenizer = metadata()
    tokenizer["tokenizer.ggml.token_type"] = np.array(tokenizer["tokenizer.ggml.token_type"], "i4")
    keys = gguf_metadata(recipe) | tokenizer | {"general.name": "tiny"}
    model = write_gguf(tmp_path / "tiny.gguf", keys, gguf_tensors(recipe))
    assert_served_vectors_are_the_references(model, TEXTS, tmp_path)
