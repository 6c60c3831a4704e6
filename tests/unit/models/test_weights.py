"""Tensors of a file become weights of a model, or are refused by name."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.gguf.checkpoint import read_checkpoint
from rocmforge.gguf.config.reading import read_config
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.memory import (
    float32_weight_bytes,
    kv_bytes_per_token,
    stored_weight_bytes,
)
from rocmforge.models.weights import load_weights, present
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors, write_model
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import write_gguf

Loaded = ModelWeights[npt.NDArray[np.float32]]


def load_model(
    folder: Path, name: str, changes: dict[str, npt.NDArray[Any] | None] | None = None
) -> Loaded:
    """The weights of a tiny model, with tensors replaced, or left out if None."""
    model = by_name(name)
    tensors: dict[str, Any] = {**gguf_tensors(model), **(changes or {})}
    kept = {key: value for key, value in tensors.items() if value is not None}
    path = write_gguf(folder / "model.gguf", gguf_metadata(model), kept)
    with open_gguf(path) as file:
        return load_weights(read_config(file), read_checkpoint(file).weights, Tensor.to_float32)


def test_fused_tensors_are_cut_into_their_parts(tmp_path: Path) -> None:
    tensors = gguf_tensors(by_name("phi3"))
    for index, layer in enumerate(load_model(tmp_path, "phi3").layers):
        qkv = tensors[f"blk.{index}.attn_qkv.weight"]
        attention = present(layer.attention)
        parts = [attention.q, present(attention.k), present(attention.v)]
        np.testing.assert_array_equal(np.concatenate(parts), qkv)
        assert [len(part) for part in parts] == [48, 16, 16]
        up = tensors[f"blk.{index}.ffn_up.weight"]
        feed_forward = present(layer.feed_forward)
        halves = [present(feed_forward.gate), feed_forward.up]
        np.testing.assert_array_equal(np.concatenate(halves), up)
        assert [len(half) for half in halves] == [72, 72]


def test_a_tied_output_is_the_embedding_itself(tmp_path: Path) -> None:
    weights = load_model(tmp_path, "qwen2")
    assert weights.output is weights.embedding.token


def test_weights_are_freed_at_once_when_nobody_has_them(tmp_path: Path) -> None:
    """They may be half of the memory, and the garbage collector does not come for one model."""
    gc.disable()
    try:
        weights = load_model(tmp_path, "llama")
        matrix = weakref.ref(present(weights.layers[1].attention).q)
        assert matrix() is not None
        del weights
        assert matrix() is None
    finally:
        gc.enable()


def test_an_output_matrix_of_its_own_is_used(tmp_path: Path) -> None:
    weights = load_model(tmp_path, "llama")
    expected = gguf_tensors(by_name("llama"))["output.weight"]
    np.testing.assert_array_equal(present(weights.output), expected)


def test_biases_and_norms_are_there_only_where_the_architecture_has_them(tmp_path: Path) -> None:
    (plain, *_), (biased, *_) = (
        load_model(tmp_path, name).layers for name in ("llama", "llama-bias-tied")
    )
    attention = present(plain.attention)
    assert attention.q_bias is attention.output_bias is attention.q_norm is None
    assert plain.attention_post_norm is None
    assert present(biased.attention).q_bias is not None
    assert present(biased.attention).output_bias is not None
    gemma = load_model(tmp_path, "gemma3").layers[0]
    assert present(gemma.attention).q_norm is not None
    assert gemma.attention_post_norm is not None
    assert gemma.feed_forward_post_norm is not None


def test_every_tensor_is_converted_once_and_progress_reaches_one(tmp_path: Path) -> None:
    converted: list[str] = []
    shares: list[float] = []

    def convert(tensor: Tensor) -> str:
        converted.append(tensor.name.split("[")[0])
        return tensor.name

    with open_gguf(write_model(by_name("phi3-longrope-long"), tmp_path)) as file:
        load_weights(read_config(file), read_checkpoint(file).weights, convert, shares.append)
        factors = {name for name in file.tensors if name.startswith("rope_factors")}
        assert set(converted) == set(file.tensors) - factors
    assert len(converted) == len(set(converted)) + 2 * (2 + 1)  # qkv and gate-up of two layers
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


REQUIRED = [
    ("llama", "token_embd.weight"),
    ("llama", "output_norm.weight"),
    ("llama", "blk.1.attn_q.weight"),
    ("llama", "blk.0.ffn_down.weight"),
    ("qwen3", "blk.1.attn_k_norm.weight"),
    ("gemma2", "blk.2.post_ffw_norm.weight"),
    ("phi3", "blk.0.attn_qkv.weight"),
    ("phi3-longrope-long", "rope_factors_short.weight"),
]


@pytest.mark.parametrize(("model", "tensor"), REQUIRED)
def test_a_missing_tensor_is_named(model: str, tensor: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTensor, match="missing") as caught:
        load_model(tmp_path, model, {tensor: None})
    assert caught.value.tensor == tensor


UNEXPECTED = [
    ("llama", "blk.0.attn_q_norm.weight", "not a part of llama"),
    ("llama", "blk.2.attn_q.weight", "with 2 layers"),
    ("llama", "blk.0.ffn_gate_exps.weight", "not a part of llama"),
    ("llama", "blk.0.ffn_gate_inp.weight", "not a part of llama"),
    ("gemma2", "output.weight", "not a part of gemma2"),
    ("qwen2", "cls.weight", "not a part"),
]


@pytest.mark.parametrize(("model", "tensor", "reason"), UNEXPECTED)
def test_an_unexpected_tensor_is_named(
    model: str, tensor: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedTensor, match=reason) as caught:
        load_model(tmp_path, model, {tensor: np.zeros((48, 48), np.float32)})
    assert caught.value.tensor == tensor


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        ("blk.0.attn_q.weight", (40, 48)),
        ("blk.1.ffn_norm.weight", (47,)),
        ("blk.1.ffn_norm.weight", (48, 1)),
        ("token_embd.weight", (96, 48)),
        ("blk.0.attn_k.bias", (48,)),
        ("rope_freqs.weight", (5,)),
    ],
)
def test_a_wrong_shape_is_named_with_both_shapes(
    tensor: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedTensor, match=r"its shape is .* asks for") as caught:
        load_model(tmp_path, "llama", {tensor: np.ones(shape, np.float32)})
    assert caught.value.tensor == tensor


def test_checking_reads_no_tensor_data(tmp_path: Path) -> None:
    with open_gguf(write_model(by_name("glm4"), tmp_path)) as file:
        read_checkpoint(file)


def test_memory_needs(tmp_path: Path) -> None:
    model = by_name("gemma3")
    elements = sum(tensor.size for tensor in gguf_tensors(model).values())
    with open_gguf(write_model(model, tmp_path)) as file:
        assert (
            stored_weight_bytes(file.tensors) == float32_weight_bytes(file.tensors) == 4 * elements
        )
        assert kv_bytes_per_token(read_config(file), "f16") == 7 * 2 * 1 * 14 * 2


def test_a_tensor_that_is_two_weights_is_counted_once(tmp_path: Path) -> None:
    """Keys of layers without a window are values, too, in Gemma 4."""
    model = by_name("gemma4")
    with open_gguf(write_model(model, tmp_path)) as file:
        weights = read_checkpoint(file).weights
        assert weights["layers.2.attention.v"] is weights["layers.2.attention.k"]
        names = [name for name in gguf_tensors(model) if name != "rope_freqs.weight"]
        stored = sum(file.tensors[name].nbytes for name in names)
        assert stored_weight_bytes(weights) == float32_weight_bytes(weights) == stored
