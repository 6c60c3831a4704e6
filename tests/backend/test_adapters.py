"""LoRA adapters against PEFT, and alone against in a batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.step import NO_ADAPTER
from rocmforge.errors import BadAdapter
from rocmforge.models.lora import AdapterSpec
from tests.backend.conftest import Load
from tests.backend.driving import Chunk, Want
from tests.data.models.text import tiny_adapters
from tests.data.models.text.tiny_adapters import (
    MODELS_WITH_GOLDENS,
    TinyAdapter,
    adapter_metadata,
    gguf_adapter,
    write_adapter,
)
from tests.data.models.text.tiny_models import GOLDEN_ROWS, PROMPT, by_name, goldens
from tests.support.files.gguf_writer import write_gguf

TOLERANCE = 3e-5
"""Of a log-probability, relative to the spread of the logits (a few units)."""


def spec(path: Path, scale: float = 1.0) -> AdapterSpec:
    return AdapterSpec(name=path.stem, path=str(path), scale=scale)


def log_softmax(logits: list[list[float]]) -> Float32Array:
    values: Float32Array = np.array(logits, np.float32)
    values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
    return values


def lora_goldens(name: str) -> list[list[float]]:
    """What PEFT computed; see make_lora_goldens.py."""
    path = Path(tiny_adapters.__file__).parents[1] / "goldens/lora_goldens.json"
    found: list[list[float]] = json.loads(path.read_text())[name]
    return found


@pytest.mark.parametrize("name", MODELS_WITH_GOLDENS)
def test_logits_equal_those_of_peft(name: str, load: Load, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a.gguf", by_name(name), TinyAdapter())
    driver = load(name, adapters=(spec(adapter),))
    expected = log_softmax(lora_goldens(name))
    got = driver.logprobs(Chunk(tokens=PROMPT, blocks=[3, 1, 2], adapter=0), GOLDEN_ROWS)
    assert np.abs(got - expected).max() / np.std(lora_goldens(name)) < TOLERANCE


def test_values_that_are_keys_are_changed_with_these_alone(load: Load, tmp_path: Path) -> None:
    model = by_name("gemma4")
    tensors = gguf_adapter(model, TinyAdapter(targets=("k_proj",)))
    keys = {name: values for name, values in tensors.items() if name.startswith("blk.2.")}
    of_values = {name.replace("attn_k", "attn_v"): values for name, values in keys.items()}
    path = tmp_path / "a.gguf"
    write_gguf(path, adapter_metadata(model, TinyAdapter()), of_values)
    with pytest.raises(BadAdapter, match=r"blk\.2\.attn_v.*its keys, and change with them"):
        load("gemma4", adapters=(spec(path),))


def test_without_its_adapter_a_sequence_is_what_it_was(load: Load, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a.gguf", by_name("llama"), TinyAdapter())
    chunk = Chunk(tokens=PROMPT, blocks=[3, 1, 2])
    plain = load("llama").logprobs(chunk, GOLDEN_ROWS)
    got = load("llama", adapters=(spec(adapter),)).logprobs(chunk, GOLDEN_ROWS)
    np.testing.assert_array_equal(got, plain)
    assert np.abs(plain - log_softmax(goldens("llama")["logits"])).max() < 1e-3


def test_scales_multiply(load: Load, tmp_path: Path) -> None:
    model = by_name("qwen2")
    twice = write_adapter(tmp_path / "twice.gguf", model, TinyAdapter(alpha=12.0))
    once = write_adapter(tmp_path / "once.gguf", model, TinyAdapter())
    driver = load("qwen2", adapters=(spec(twice), spec(once, 2.0), spec(once)))
    by_alpha, by_option, unscaled = (
        driver.logprobs(Chunk(tokens=PROMPT, blocks=[0, 1, 2], adapter=number), [39])
        for number in range(3)
    )
    np.testing.assert_allclose(by_alpha, by_option, rtol=1e-5)
    assert np.abs(by_alpha - unscaled).max() > 0.1


def test_without_alpha_the_scale_is_that_of_the_option(load: Load, tmp_path: Path) -> None:
    model = by_name("llama")
    none = write_adapter(tmp_path / "none.gguf", model, TinyAdapter(alpha=0.0))
    same = write_adapter(tmp_path / "same.gguf", model, TinyAdapter(alpha=4.0))
    driver = load("llama", adapters=(spec(none), spec(same)))
    got, expected = (
        driver.logprobs(Chunk(tokens=PROMPT, blocks=[0, 1, 2], adapter=number), [39])
        for number in range(2)
    )
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0"])
def test_stored_types_are_read(name: str, load: Load, tmp_path: Path) -> None:
    model = by_name("llama3-rope")
    recipe = TinyAdapter(rank=32, targets=("o_proj",))  # whose sizes are multiples of Q8_0's block
    exact = write_adapter(tmp_path / "exact.gguf", model, recipe)
    stored = write_adapter(tmp_path / "stored.gguf", model, recipe, GGMLQuantizationType[name])
    driver = load(model.name, adapters=(spec(exact), spec(stored)))
    plain, expected, got = (
        driver.logprobs(Chunk(tokens=PROMPT, blocks=[0, 1, 2], adapter=number), [39])
        for number in (NO_ADAPTER, 0, 1)
    )
    assert 0 < np.abs(got - expected).max() < 0.05 * np.abs(plain - expected).max()


def test_a_mixed_batch_gives_what_each_gives_alone(load: Load, tmp_path: Path) -> None:
    model = by_name("llama")
    specs = tuple(
        spec(write_adapter(tmp_path / f"{seed}.gguf", model, recipe))
        for seed, recipe in enumerate(
            (
                TinyAdapter(seed=1),
                TinyAdapter(seed=2, rank=16, targets=("q_proj", "v_proj")),
                TinyAdapter(seed=3, rank=1, targets=("gate_proj", "down_proj")),
            )
        )
    )
    driver = load("llama", adapters=specs)
    wants = tuple(Want(target=target, num_logprobs=0) for target in range(97))
    chunks = [
        Chunk(tokens=PROMPT[:length], blocks=[3 * i, 3 * i + 1, 3 * i + 2], wants=wants, adapter=a)
        for i, (length, a) in enumerate(((9, 2), (40, -1), (1, 0), (17, 1), (5, 0)))
    ]
    together, *alone = (driver.run(*some).logprobs for some in (chunks, *([c] for c in chunks)))
    assert together is not None
    np.testing.assert_array_equal(
        together, np.concatenate([row for row in alone if row is not None])
    )


def test_values_that_are_not_finite_are_refused(load: Load, tmp_path: Path) -> None:
    recipe = TinyAdapter(strength=float("inf"), targets=("0.self_attn.o_proj",))
    path = write_adapter(tmp_path / "a.gguf", by_name("llama"), recipe)
    with pytest.raises(BadAdapter, match="infinities or NaN") as caught:
        load("llama", adapters=(spec(path),))
    assert caught.value.tensor == "blk.0.attn_output.weight.lora_b"
    assert caught.value.path == str(path)


def test_what_adapters_take_is_counted(load: Load, tmp_path: Path) -> None:
    model, recipe = by_name("llama"), TinyAdapter(rank=8)
    path = write_adapter(tmp_path / "a.gguf", model, recipe)
    info = load("llama", adapters=(spec(path), spec(path))).runner.info
    values = sum(tensor.size for tensor in gguf_adapter(model, recipe).values())
    assert info.adapters == ("a", "a")
    assert info.adapter_bytes == 2 * 4 * values
