"""Encoders on the HIP backend against the reference backend."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.backend.protocol import Runner
from rocmforge.engine.ipc.params import Pooling, SamplingParams
from rocmforge.errors import OutOfMemory, UnsupportedArchitecture, UnsupportedTensor
from rocmforge_hip.backend import create as create_hip
from rocmforge_hip.run.runner import HipRunner
from tests.data.models.text.tiny_encoders import (
    ENCODERS,
    PROMPT,
    TinyEncoder,
    by_name,
    write_encoder,
)
from tests.support.engine.core import make_core, vectors_of
from tests.support.files.gguf_writer import Stored
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.encoder_steps import encoder_step, run
from tests.support.models.loading import estimate_file, load_file
from tests.support.models.options import SMALL
from tests.support.models.runners import load_reference
from tests.support.models.served_vectors import assert_served_vectors_are_the_references
from tests.support.operands.weights import ggml_type, random_matrix

pytestmark = pytest.mark.slow

OPTIONS = replace(SMALL, max_context=64, max_sequences=12, max_batched_tokens=200, kv_blocks=None)
NAMES = [model.name for model in ENCODERS]
TOLERANCE = 0.01  # relative to the largest element: halves between matrix products
MANY = (PROMPT, PROMPT[:1], PROMPT[3:20], PROMPT[::-1], PROMPT[:33])
FEW = (PROMPT[:5], PROMPT[7:9])

Array = npt.NDArray[Any]


def fitting(model: TinyEncoder, dim: int = 64, heads: int = 2) -> TinyEncoder:
    """The same architecture in sizes that there are kernels for."""
    sizes = {"hidden_size": dim, "intermediate_size": 3 * dim // 2, "num_attention_heads": heads}
    keys = model.keys
    if model.is_gemma:
        head_dim = dim // heads
        sizes |= {"num_key_value_heads": 1, "head_dim": head_dim, "query_pre_attn_scalar": head_dim}
        keys = keys | {"attention.head_count_kv": 1}
        keys |= {f"attention.{part}_length": head_dim for part in ("key", "value")}
    return replace(model, config=model.config | sizes, keys=keys)


def load(stack: ExitStack, model: Path, **changes: Any) -> HipRunner:
    runner = load_file(create_hip(), model, replace(OPTIONS, **changes))
    assert isinstance(runner, HipRunner)
    return stack.enter_context(closing(runner))


def assert_agree(ours: Runner, theirs: Runner) -> None:
    """In steps of many and of few tokens, for every kind of pooling."""
    steps = [(prompts, kind) for prompts in (MANY, FEW) for kind in Pooling]
    for step_id, (prompts, kind) in enumerate(steps):
        step = encoder_step(step_id, prompts, kind)
        got, expected = run(ours, step), run(theirs, step)
        error = np.abs(got - expected).max() / np.abs(expected).max()
        assert error < TOLERANCE, f"{len(prompts)} prompts, {kind}: {error:.4f}"


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_gives_the_references_states(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    path = write_encoder(fitting(by_name(name)), tmp_path)
    assert_agree(load(stack, path), load_reference(stack, path, OPTIONS))


@pytest.mark.parametrize("heads", [1, 2])
def test_so_do_larger_heads(heads: int, stack: ExitStack, tmp_path: Path) -> None:
    path = write_encoder(fitting(by_name("bert"), dim=128, heads=heads), tmp_path)
    assert_agree(load(stack, path), load_reference(stack, path, OPTIONS))


@pytest.mark.parametrize("name", ["xlm-roberta", "nomic-bert", "modern-bert", "gemma-embedding"])
@pytest.mark.parametrize("type_name", ["f16", "q8_0", "q4_k"])
def test_quantised_matrices_give_the_references_states(
    name: str, type_name: str, stack: ExitStack, tmp_path: Path
) -> None:
    """Values are of another type than queries and keys, as in llama.cpp's mixtures."""
    rng = np.random.default_rng(5)

    def store(tensor: str, weight: npt.NDArray[np.float32]) -> Stored | npt.NDArray[np.float32]:
        if weight.ndim == 1 or tensor.startswith(("position_embd", "token_types")):
            return weight
        kind = "q6_k" if "attn_v" in tensor and type_name == "q4_k" else type_name
        magnitude = 1.0 if tensor.startswith("token_embd") else 0.1
        matrix = random_matrix(rng, kind, *weight.shape, magnitude=magnitude)
        return Stored(matrix.raw, ggml_type(kind))

    model = fitting(by_name(name), dim=256, heads=4)
    model = replace(model, config=model.config | {"intermediate_size": 512})
    path = write_encoder(model, tmp_path, store)
    assert_agree(load(stack, path), load_reference(stack, path, OPTIONS))


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return write_encoder(fitting(by_name("bert")), tmp_path)


def test_a_step_copies_once_each_way_waits_once_and_allocates_nothing(
    stack: ExitStack, bert: Path
) -> None:
    runner = load(stack, bert)
    driver = runner.driver

    def counted() -> tuple[int, int, int, int]:
        return driver.copies_to_device, driver.copies_to_host, driver.allocations, driver.waits

    for step_id, prompts in enumerate((MANY, FEW)):
        before = counted()
        run(runner, encoder_step(step_id, prompts, Pooling.MEAN))
        assert tuple(np.subtract(counted(), before)) == (1, 1, 0, 1)


def test_two_steps_may_be_in_flight(stack: ExitStack, bert: Path) -> None:
    runner, reference = load(stack, bert), load_reference(stack, bert, OPTIONS)
    steps = [encoder_step(i, [PROMPT[i:]], Pooling.CLS) for i in range(4)]
    expected = [run(reference, step) for step in steps]
    runner.submit(steps[0])
    found = []
    for step in steps[1:]:
        runner.submit(step)
        found.append(runner.collect().hidden)
    found.append(runner.collect().hidden)
    for got, want in zip(found, expected, strict=True):
        assert got is not None
        np.testing.assert_allclose(got, want, atol=TOLERANCE * np.abs(want).max())


def test_what_else_is_in_a_step_changes_nothing(stack: ExitStack, bert: Path) -> None:
    runner = load(stack, bert)
    alone = run(runner, encoder_step(0, [PROMPT], Pooling.MEAN))
    together = run(runner, encoder_step(1, [PROMPT[::-1], PROMPT, PROMPT[:3]], Pooling.MEAN))
    np.testing.assert_allclose(together[1], alone[0], rtol=1e-4, atol=1e-4)
    short = run(runner, encoder_step(2, [PROMPT[:3]], Pooling.MEAN))
    np.testing.assert_allclose(together[2], short[0], rtol=1e-4, atol=1e-4)


def test_no_cache_is_planned_or_allocated(
    stack: ExitStack, bert: Path, host: HostPlatform | None
) -> None:
    backend = create_hip()
    estimate = estimate_file(backend, bert, OPTIONS, memory=1 << 30)
    assert (estimate.kv_block, estimate.kv_dtype, estimate.context) == (0, "none", 64)
    before = host.live_bytes if host else 0
    runner = load(stack, bert)
    info = runner.info
    assert not info.causal
    assert (info.num_blocks, info.kv_bytes, info.hidden_size) == (0, 0, 64)
    assert any("KV cache     none" in note for note in info.notes)
    if host:  # pinned buffers come on top of what was planned for the device
        assert host.live_bytes - before < 2 * (estimate.weights + estimate.activations)


def test_memory_is_given_back(bert: Path, host: HostPlatform | None) -> None:
    if host is None:
        pytest.skip("only the host platform counts what is allocated")
    before = host.live_bytes
    with ExitStack() as stack:
        runner = load(stack, bert)
        loaded = host.live_bytes
        for step_id in range(10):
            run(runner, encoder_step(step_id, FEW, Pooling.MEAN))
        assert host.live_bytes == loaded > before
    assert host.live_bytes == before
    assert host.take_finding() == ""


def test_what_does_not_fit_is_refused(stack: ExitStack, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory, match="max_batched_tokens"):
        load(stack, bert, memory_utilization=1e-9)
    runner = load(stack, bert, max_batched_tokens=40)
    with pytest.raises(OutOfMemory, match="40 tokens"):
        runner.submit(encoder_step(0, [PROMPT, PROMPT], Pooling.CLS))
    (tmp_path / "narrow").mkdir()
    narrow = write_encoder(fitting(by_name("bert"), heads=4), tmp_path / "narrow")
    with pytest.raises(UnsupportedArchitecture, match="heads of 16 elements"):
        load(stack, narrow)


def test_a_quantised_table_of_positions_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    def store(tensor: str, weight: npt.NDArray[np.float32]) -> Stored | npt.NDArray[np.float32]:
        if not tensor.startswith("position_embd"):
            return weight
        return Stored.quantized(weight, ggml_type("q8_0"))

    path = write_encoder(fitting(by_name("bert")), tmp_path, store)
    with pytest.raises(UnsupportedTensor, match="adds rows of floats"):
        load(stack, path)


@pytest.mark.parametrize(("name", "kind"), [("bert", Pooling.MEAN), ("ranker", Pooling.CLS)])
def test_the_engine_gives_the_references_vectors_and_scores(
    name: str, kind: Pooling, stack: ExitStack, tmp_path: Path
) -> None:
    path = write_encoder(fitting(by_name(name)), tmp_path)
    sampling = SamplingParams(max_tokens=0, pooling=kind)
    requests = [(PROMPT[: 1 + 3 * index % 40], sampling) for index in range(30)]
    runners = load(stack, path), load_reference(stack, path, OPTIONS)
    got, expected = (np.stack(vectors_of(make_core(each, OPTIONS), requests)) for each in runners)
    assert got.shape == (30, 1 if name == "ranker" else 64)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.usefixtures("stack")
def test_the_endpoint_gives_the_references_vectors(bert: Path, tmp_path: Path) -> None:
    texts = ["the cat sat", "rainfall", "on the mat."]
    assert_served_vectors_are_the_references(bert, texts, tmp_path)
