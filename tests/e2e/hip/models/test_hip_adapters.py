"""LoRA adapters on the HIP backend against the reference backend, and alone against in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.backend.step import NO_ADAPTER
from rocmforge.errors import BadAdapter
from rocmforge.models.lora import AdapterSpec
from rocmforge_hip.backend import create as create_hip
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_adapters import TinyAdapter, gguf_adapter, write_adapter
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.models.hip import fitting, quantized, write_quantized
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip, load_reference

OPTIONS = replace(SMALL, max_batched_tokens=40)
# Of log-probabilities, relative to the spread of the logits, as in test_hip_models.py.
FLOAT_TOLERANCE = 0.03
INT8_TOLERANCE = 0.08

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "glm4")
RECIPES = (
    TinyAdapter(seed=1),
    TinyAdapter(seed=2, rank=20, targets=("q_proj", "v_proj", "qkv_proj")),
    TinyAdapter(seed=3, rank=1, targets=("up_proj", "down_proj")),
)


def write_adapters(model: TinyModel, folder: Path) -> tuple[AdapterSpec, ...]:
    paths = [
        write_adapter(folder / f"adapter-{number}.gguf", model, recipe)
        for number, recipe in enumerate(RECIPES)
    ]
    return tuple(AdapterSpec(name=path.stem, path=str(path)) for path in paths)


def drivers(stack: ExitStack, model: TinyModel, path: Path, folder: Path) -> tuple[Driver, Driver]:
    """The HIP backend's and the reference's, with the adapters loaded."""
    options = replace(OPTIONS, adapters=write_adapters(model, folder))
    return Driver(load_hip(stack, path, options)), Driver(load_reference(stack, path, options))


def assert_adapters_agree(
    ours: Driver, theirs: Driver, tolerance: float, adapters: Sequence[int] = (0,)
) -> None:
    """For a prompt, for a few tokens and for one."""
    for adapter in adapters:
        for tokens, start in ((PROMPT[:20], 0), (PROMPT[20:24], 20), (PROMPT[24:25], 24)):
            chunk = Chunk(tokens=tokens, start=start, blocks=[3, 1, 2, 4], adapter=adapter)
            rows = [len(tokens) - 1]
            got, expected = (driver.logprobs(chunk, rows) for driver in (ours, theirs))
            error = np.abs(got - expected).max() / expected.std()
            assert error < tolerance, f"adapter {adapter}, from {start}: {error:.4f}"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gives_the_references_logits(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    model = fitting(by_name(name))
    ours, theirs = drivers(stack, model, write_model(model, tmp_path), tmp_path)
    assert_adapters_agree(ours, theirs, FLOAT_TOLERANCE)


def test_queries_that_are_stored_with_latent_vectors(stack: ExitStack, tmp_path: Path) -> None:
    model = fitting(by_name("deepseek-v2"))
    keys = model.keys | {"leading_dense_block_count": 3}
    model = replace(model, keys=keys, config=model.config | {"first_k_dense_replace": 3})
    recipe = TinyAdapter(seed=2, rank=20, targets=("q_proj", "o_proj", "up_proj"))
    adapter = write_adapter(tmp_path / "adapter.gguf", model, recipe)
    options = replace(OPTIONS, adapters=(AdapterSpec(name="adapter", path=str(adapter)),))
    path = write_model(model, tmp_path)
    ours, theirs = (Driver(load(stack, path, options)) for load in (load_hip, load_reference))
    assert_adapters_agree(ours, theirs, FLOAT_TOLERANCE, (0, NO_ADAPTER))


def test_adapters_of_some_matrices_and_of_other_ranks(stack: ExitStack, tmp_path: Path) -> None:
    model = fitting(by_name("phi3"))
    ours, theirs = drivers(stack, model, write_model(model, tmp_path), tmp_path)
    assert_adapters_agree(ours, theirs, FLOAT_TOLERANCE, (1, 2, NO_ADAPTER))


def test_a_quantised_model_gives_the_references_logits(stack: ExitStack, tmp_path: Path) -> None:
    model = quantized(by_name("llama"), "q4_k")
    path = write_quantized(model, "q4_k", tmp_path)
    ours, theirs = drivers(stack, model, path, tmp_path)
    assert_adapters_agree(ours, theirs, INT8_TOLERANCE)


@pytest.mark.parametrize("length", [1, 9], ids=["decodes", "prefills"])
def test_a_mixed_batch_gives_what_each_gives_alone(
    length: int, stack: ExitStack, tmp_path: Path
) -> None:
    """Alone among others without an adapter: what kernels round depends on the number of rows."""
    model = fitting(by_name("llama"))
    driver, _ = drivers(stack, model, write_model(model, tmp_path), tmp_path)
    wants = tuple(Want(target=target, num_logprobs=0) for target in range(12))
    adapters = (2, NO_ADAPTER, 0, 1)

    def chunk(place: int, adapter: int) -> Chunk:
        tokens = PROMPT[3 * place : 3 * place + (length if place else min(length, 3))]
        return Chunk(tokens=tokens, blocks=[place], wants=wants, adapter=adapter)

    def run(chosen: tuple[int, ...]) -> list[list[float]]:
        logprobs = driver.run(*map(chunk, range(4), chosen)).logprobs
        assert logprobs is not None
        rows: list[list[float]] = logprobs.reshape(4, -1).tolist()
        return rows

    together = run(adapters)
    for place, adapter in enumerate(adapters):
        alone = tuple(adapter if other == place else NO_ADAPTER for other in range(4))
        if adapter == NO_ADAPTER:  # through the fused feed-forward, which other kernels compute
            np.testing.assert_allclose(run(alone)[place], together[place], atol=0.01)
        else:
            assert run(alone)[place] == together[place]
    assert len({tuple(run((adapter,) * 4)[0]) for adapter in adapters}) == 4


def test_decodes_run_as_graphs_of_their_own(stack: ExitStack, tmp_path: Path) -> None:
    """One for steps with adapters and one for those without; each step copies nothing."""
    model = fitting(by_name("llama"))
    options = replace(OPTIONS, adapters=write_adapters(model, tmp_path))
    runner = load_hip(stack, write_model(model, tmp_path), options)
    driver = Driver(runner)
    for adapters in ((0, 1), (NO_ADAPTER, 2), (NO_ADAPTER, NO_ADAPTER), (1, 1)):
        for position in range(2):
            before = runner.driver.copies_to_device
            driver.run(
                *(
                    Chunk(tokens=[5], start=position, blocks=[place], adapter=adapter)
                    for place, adapter in enumerate(adapters)
                )
            )
            assert runner.driver.copies_to_device == before
    assert len(runner._graphs._graphs) == 2


def test_what_adapters_take_is_planned(stack: ExitStack, tmp_path: Path) -> None:
    model = fitting(by_name("llama"))
    path = write_model(model, tmp_path)
    specs = write_adapters(model, tmp_path)
    runner = load_hip(stack, path, replace(OPTIONS, adapters=specs))
    values = sum(
        tensor.size for recipe in RECIPES for tensor in gguf_adapter(model, recipe).values()
    )
    assert runner.info.adapters == ("adapter-0", "adapter-1", "adapter-2")
    assert 2 * values <= runner.info.adapter_bytes < 6 * values  # ranks are padded
    assert any(note.startswith("adapters ") for note in runner.info.notes)
    assert load_hip(stack, path, OPTIONS).info.adapter_bytes == 0


@pytest.mark.usefixtures("stack")
def test_a_bad_adapter_never_gets_to_the_device(tmp_path: Path) -> None:
    path = write_model(fitting(by_name("llama")), tmp_path)
    other = write_adapter(tmp_path / "a.gguf", fitting(by_name("qwen2")), TinyAdapter())
    options = replace(OPTIONS, adapters=(AdapterSpec(name="a", path=str(other)),))
    with pytest.raises(BadAdapter, match="it is for qwen2 models"):
        load_file(create_hip(), path, options)
