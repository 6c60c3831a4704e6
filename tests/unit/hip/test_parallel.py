"""Cutting a model into the parts of ranks, and what cannot be cut."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import ConfigurationError
from rocmforge.gguf.checkpoint import read_checkpoint
from rocmforge.gguf.config.reading import read_config
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.weights import present, take, walk
from rocmforge_hip.ops.collective import new_group_id
from rocmforge_hip.ops.sharded import gather_orders
from rocmforge_hip.weights.shard import Shard
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.support.models.hip import fitting, quantized, splittable, write_quantized
from tests.support.models.uneven import random_weights, uneven

ADDED_UP = ("attention.output", "feed_forward.down")
WHOLE = (
    *("attention_norm", "attention.q_norm", "attention.k_norm", "attention_post_norm"),
    *("feed_forward_norm", "feed_forward_post_norm", "attention.output_bias"),
)


def read(path: Path) -> tuple[ModelConfig, ModelWeights[Tensor]]:
    with open_gguf(path) as file:
        config = read_config(file)
        return config, take(config, read_checkpoint(file).weights)


@pytest.fixture
def whole(tmp_path: Path) -> tuple[ModelConfig, ModelWeights[Tensor]]:
    """A tied model with biases."""
    return read(write_model(splittable(fitting(by_name("llama-bias-tied"))), tmp_path))


def test_the_parts_of_a_layer_make_up_the_whole(
    whole: tuple[ModelConfig, ModelWeights[Tensor]],
) -> None:
    config, weights = whole
    parts = [Shard(rank, 2).weights(config, weights) for rank in range(2)]
    cut = [dict(walk(part)) for part in parts]
    for place, tensor in walk(weights):
        if place.layer is None or place.name in WHOLE:
            continue
        pieces = [part[place].to_float32() for part in cut]
        axis = 1 if place.name in ADDED_UP else 0
        np.testing.assert_array_equal(np.concatenate(pieces, axis), tensor.to_float32())
    for index, layer in enumerate(weights.layers):
        first, second = (part.layers[index] for part in parts)
        of_first, of_second, of_both = (
            present(each.attention).output_bias for each in (first, second, layer)
        )
        assert of_first is of_both is not None
        assert of_second is None
        assert first.attention_norm is second.attention_norm is layer.attention_norm
    heads = np.concatenate([present(part.output).to_float32() for part in parts])
    np.testing.assert_array_equal(heads, present(weights.output).to_float32())
    assert all(part.embedding.token is weights.embedding.token for part in parts)


def test_a_rank_computes_whole_heads_and_all_of_the_width(
    whole: tuple[ModelConfig, ModelWeights[Tensor]],
) -> None:
    config, _ = whole
    part = Shard(1, 2).config(config)
    for layer, whole_layer in zip(part.layers, config.layers, strict=True):
        assert (layer.num_heads, layer.num_kv_heads, layer.intermediate_size) == (3, 1, 64)
        assert (layer.key_dim, layer.value_dim) == (whole_layer.key_dim, whole_layer.value_dim)
    assert (part.hidden_size, part.vocab_size) == (config.hidden_size, 96)


def test_the_parts_of_layers_that_differ_fit_what_a_rank_computes(
    whole: tuple[ModelConfig, ModelWeights[Tensor]],
) -> None:
    config = uneven(whole[0], [(4, 2, 64, 64, None, 128), (12, 4, 192, 128, 5, 704)])
    weights = take(config, random_weights(config))
    shard = Shard(1, 2)
    shard.check(config, weights)
    part = shard.config(config)
    for place, tensor in walk(shard.weights(config, weights)):
        if place.layer is not None:
            assert tensor.shape == place.shape(part), place.path
    odd = uneven(whole[0], [(4, 2, 64, 64, None, 128), (12, 3, 64, 64, None, 128)])
    with pytest.raises(ConfigurationError, match="its 3 key-value heads are not a multiple of 2"):
        shard.check(odd, take(odd, random_weights(odd)))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_key_value_heads": 3}, "its 3 key-value heads are not a multiple of 2"),
        ({"vocab_size": 100}, "its 100 tokens of the vocabulary are not a multiple of 8"),
        (
            {"intermediate_size": 96},
            r"the 96 in_features of blk.0.ffn_down.weight are not a multiple of 64: 2 parts in "
            r"blocks of 32 \(F32\)",
        ),
    ],
)
def test_what_does_not_divide_is_refused_with_the_number(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    tiny = splittable(fitting(by_name("llama")))
    config, weights = read(write_model(replace(tiny, config=tiny.config | changes), tmp_path))
    with pytest.raises(ConfigurationError, match=problem) as caught:
        Shard(0, 2).check(config, weights)
    assert caught.value.message.endswith("Use --tensor-parallel 1.")


def test_a_cut_through_a_block_of_a_stored_type_is_refused(tmp_path: Path) -> None:
    tiny = splittable(quantized(by_name("llama"), "q4_k"))
    tiny = replace(tiny, config=tiny.config | {"intermediate_size": 256})
    config, weights = read(write_quantized(tiny, "q4_k", tmp_path))
    with pytest.raises(ConfigurationError, match=r"multiple of 512: 2 parts in blocks of 256 \(Q4"):
        Shard(0, 2).check(config, weights)


def test_a_refusal_says_what_would_work(tmp_path: Path) -> None:
    config, weights = read(write_model(splittable(fitting(by_name("llama"))), tmp_path))
    Shard(0, 2).check(config, weights)
    with pytest.raises(ConfigurationError, match=r"Use --tensor-parallel 1 or 2\."):
        Shard(0, 4).check(config, weights)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_gathered_parts_are_put_in_order(rows: int) -> None:
    ranks, width = 3, 4
    logits = np.arange(rows * ranks * width).reshape(rows, ranks, width)
    gathered = logits.transpose(1, 0, 2).reshape(ranks * rows, width)
    first = ranks * rows * (rows - 1) // 2
    order = gather_orders(ranks, 6)[first : first + ranks * rows]
    np.testing.assert_array_equal(gathered[order], logits.reshape(rows * ranks, width))


def test_missing_bindings_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocm.bindings.rccl", None)
    monkeypatch.delattr("rocm.bindings.rccl", raising=False)
    with pytest.raises(ConfigurationError, match=r"pip install 'rocmforge\[multi\]'"):
        new_group_id()
