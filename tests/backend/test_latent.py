"""Multi-head latent attention on the reference backend, and mistakes that must be seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge_reference import ops
from rocmforge_reference.model_ops import ReferenceOps
from tests.backend.conftest import Load
from tests.backend.driving import Chunk
from tests.backend.test_experts import error_of
from tests.data.models.text.expert_weights import fuse_latent
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_models import GOLDEN_ROWS, PROMPT, by_name
from tests.support.files.gguf_writer import write_gguf


def write_old(name: str, folder: Path) -> Path:
    """The model as older converters wrote it: keys and values in one matrix, sizes of heads."""
    model = by_name(name)
    config, metadata = model.config, gguf_metadata(model)
    key_dim = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    for size in ("key_length_mla", "value_length_mla"):
        del metadata[f"deepseek2.attention.{size}"]
    metadata["deepseek2.attention.key_length"] = key_dim
    metadata["deepseek2.attention.value_length"] = config["v_head_dim"]
    metadata["deepseek2.attention.head_count_kv"] = config["num_attention_heads"]
    return write_gguf(folder / "old.gguf", metadata, fuse_latent(gguf_tensors(model)))


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_a_file_of_an_older_converter_says_the_same(name: str, load: Load, tmp_path: Path) -> None:
    chunk = Chunk(tokens=PROMPT, blocks=[3, 1, 2])
    expected = load(name).logprobs(chunk, GOLDEN_ROWS)
    found = load(write_old(name, tmp_path)).logprobs(chunk, GOLDEN_ROWS)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_a_token_takes_one_row_of_the_cache_in_each_layer(name: str, load: Load) -> None:
    info = load(name).runner.info
    layers = by_name(name).config["num_hidden_layers"]
    assert info.kv_bytes == info.num_blocks * info.block_size * layers * 4 * (32 + 8)


def other_heads(right: Callable[..., Any]) -> Callable[..., Any]:
    """Each head is multiplied with the matrix of the next one."""
    return lambda x, weight: right(x, np.roll(weight, 1, axis=0))


def not_rotated(right: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing rotates."""
    return lambda self, step, x, spec: x


def rotated_last(right: Callable[..., Any]) -> Callable[..., Any]:
    """What rotates stands where the latent vector should begin, as a value."""
    return lambda cache, rows, slots: right(cache, np.roll(rows, 8, axis=-1), slots)


@pytest.mark.parametrize(
    ("place", "name", "mistake"),
    [
        (ops, "head_linear", other_heads),
        (ops, "store", rotated_last),
        (ReferenceOps, "_rotate", not_rotated),
    ],
)
@pytest.mark.parametrize("model", ["deepseek-v2", "deepseek-v3"])
def test_a_mistake_in_latent_attention_is_seen(
    model: str,
    place: Any,
    name: str,
    mistake: Callable[[Callable[..., Any]], Callable[..., Any]],
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, name, mistake(getattr(place, name)))
    assert error_of(model, load) > 30
