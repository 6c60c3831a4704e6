"""Files of encoders: what is read of them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import BadGguf, RocmForgeError, UnsupportedArchitecture, UnsupportedTensor
from rocmforge.gguf.checkpoint import read_checkpoint
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.config import ActivationFunction, ModelConfig, alibi_slopes
from rocmforge.models.forward.ops import attention_specs
from rocmforge.models.pooling import PoolingType
from rocmforge.models.weights import load_weights, present
from tests.data.models.text import model_files, tiny_models
from tests.data.models.text.tiny_encoders import by_name, gguf_metadata, gguf_tensors
from tests.support.files.gguf_writer import write_gguf

PATTERN = (9, 9, None, None, 9)


def write(
    folder: Path, name: str, *, keys: dict[str, Any] | None = None, tensors: Any = None
) -> Path:
    """A tiny encoder with changed keys and tensors; None leaves one out."""
    model = by_name(name)
    metadata = gguf_metadata(model) | (keys or {})
    found = gguf_tensors(model) | (tensors or {})
    return write_gguf(
        folder / "model.gguf",
        {key: value for key, value in metadata.items() if value is not None},
        {key: value for key, value in found.items() if value is not None},
    )


def read(path: Path) -> ModelConfig:
    with open_gguf(path) as file:
        config = read_checkpoint(file).config
    assert not config.causal
    return config


def reaches_of(config: ModelConfig) -> tuple[int | None, ...]:
    windows = [spec.window for spec in attention_specs(config)]
    return tuple(None if window is None else window - 1 for window in windows)


def test_the_metadata_of_bert(tmp_path: Path) -> None:
    config = read(write(tmp_path, "bert"))
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (2, 48, 97)
    for layer in config.layers:
        assert (layer.num_heads, layer.num_kv_heads) == (4, 4)
        assert (layer.key_dim, layer.value_dim, layer.intermediate_size) == (12, 12, 72)
        assert layer.attention_scale == pytest.approx(12**-0.5)
    assert (config.max_context, config.pooling) == (64, PoolingType.CLS)
    assert config.activation is ActivationFunction.GELU
    assert config.rope is None
    assert config.output_size == 48


def test_the_metadata_of_nomic_bert(tmp_path: Path) -> None:
    config = read(write(tmp_path, "nomic-bert"))
    assert config.activation is ActivationFunction.SILU
    assert config.rope is not None
    assert (config.rope.theta, config.rope.rotary_dim) == (1000.0, 12)


def test_the_metadata_of_modern_bert(tmp_path: Path) -> None:
    config = read(write(tmp_path, "modern-bert"))
    assert config.activation is ActivationFunction.GELU
    assert config.pre_norm
    assert config.rope is not None
    assert config.local_rope is not None
    assert (config.rope.theta, config.local_rope.theta) == (1000.0, 100.0)
    assert reaches_of(config) == (None, 9, 9, None, 9)


@pytest.mark.parametrize(
    ("keys", "reaches"),
    [
        ({"attention.sliding_window": None}, (None,) * 5),
        ({"attention.sliding_window": 0}, (None,) * 5),
        ({"attention.sliding_window": 7}, (None, 3, 3, None, 3)),
        ({"attention.sliding_window": np.uint64(2**40)}, (None, 64, 64, None, 64)),
        ({"attention.sliding_window_pattern": None}, (None, 9, 9, None, 9)),
        ({"attention.sliding_window_pattern": 1}, (None,) * 5),
        ({"attention.sliding_window_pattern": 2}, (None, 9, None, 9, None)),
        ({"attention.sliding_window_pattern": np.array([1, 1, 0, 0, 1], np.bool_)}, PATTERN),
    ],
)
def test_layers_with_a_window_are_those_the_file_names(
    keys: dict[str, Any], reaches: tuple[int | None, ...], tmp_path: Path
) -> None:
    prefixed = {f"modern-bert.{key}": value for key, value in keys.items()}
    assert reaches_of(read(write(tmp_path, "modern-bert", keys=prefixed))) == reaches


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("gelu", ActivationFunction.GELU),
        ("silu", ActivationFunction.SILU),
        ("gelu_pytorch_tanh", ActivationFunction.GELU_TANH),
        (None, ActivationFunction.GELU),
    ],
)
def test_the_file_may_name_the_activation(
    name: str | None, activation: ActivationFunction, tmp_path: Path
) -> None:
    path = write(tmp_path, "modern-bert", keys={"modern-bert.hidden_activation": name})
    assert read(path).activation is activation


@pytest.mark.parametrize(
    ("keys", "tensors", "error", "what"),
    [
        ({"attention.sliding_window": 1}, {}, BadGguf, "sliding_window"),
        ({"attention.sliding_window": np.int32(-2)}, {}, BadGguf, "sliding_window"),
        ({"attention.sliding_window_pattern": 0}, {}, BadGguf, "sliding_window_pattern"),
        (
            {"attention.sliding_window_pattern": np.ones(1, np.bool_)},
            {},
            BadGguf,
            "1 flags for 5 layers",
        ),
        ({"rope.freq_base_swa": 0.1}, {}, BadGguf, "freq_base_swa"),
        ({"hidden_activation": "relu"}, {}, UnsupportedArchitecture, "'relu'"),
        ({"pooling_type": 4}, {}, UnsupportedArchitecture, "classification head"),
        ({}, {"blk.0.attn_norm.weight": np.ones(48, np.float32)}, UnsupportedTensor, "blk.0"),
        ({}, {"blk.1.attn_norm.weight": None}, UnsupportedTensor, "blk.1.attn_norm"),
        ({}, {"output_norm.weight": None}, UnsupportedTensor, "output_norm"),
    ],
)
def test_modern_bert_that_cannot_be_served_is_refused_by_name(
    keys: dict[str, Any],
    tensors: dict[str, Any],
    error: type[RocmForgeError],
    what: str,
    tmp_path: Path,
) -> None:
    prefixed = {f"modern-bert.{key}": value for key, value in keys.items()}
    with pytest.raises(error, match=what):
        read(write(tmp_path, "modern-bert", keys=prefixed, tensors=tensors))


def test_the_metadata_of_jina_bert(tmp_path: Path) -> None:
    config = read(write(tmp_path, "jina-bert-v2"))
    assert config.activation is ActivationFunction.GELU
    assert config.rope is None
    assert not config.pre_norm
    assert reaches_of(config) == (None, None)
    assert config.has_alibi
    assert {layer.num_heads for layer in config.layers} == {6}


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (6, [2, 4, 6, 8, 1, 3]),  # those of four, and every other one of eight
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_are_powers_of_two(heads: int, exponents: list[float]) -> None:
    assert alibi_slopes(heads) == pytest.approx([2**-exponent for exponent in exponents])


@pytest.mark.parametrize(
    ("name", "up_is_first"), [("jina-bert-v2", False), ("jina-bert-v2-code", True)]
)
def test_gate_and_up_of_jina_bert_may_be_one_matrix_or_two(
    name: str, up_is_first: bool, tmp_path: Path
) -> None:
    tensors = gguf_tensors(by_name(name))
    apart: dict[str, Any] = {}
    for tensor, weight in tensors.items():
        if tensor.endswith("ffn_up.weight"):
            first, second = np.split(weight, 2)
            up, gate = (first, second) if up_is_first else (second, first)
            apart |= {tensor: up, tensor.replace("ffn_up", "ffn_gate"): gate}
    for changed in ({}, apart):
        path = write(tmp_path, name, tensors=changed)
        with open_gguf(path) as file:
            weights = load_weights(read(path), read_checkpoint(file).weights, Tensor.to_float32)
        for index, layer in enumerate(weights.layers):
            feed_forward = present(layer.feed_forward)
            up, gate = feed_forward.up, present(feed_forward.gate)
            np.testing.assert_array_equal(up, apart[f"blk.{index}.ffn_up.weight"])
            np.testing.assert_array_equal(gate, apart[f"blk.{index}.ffn_gate.weight"])


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        ({"blk.0.ffn_up.weight": None}, "blk.0.ffn_up.weight"),
        ({"blk.1.ffn_up.weight": None}, "blk.1.ffn_up.weight"),
        ({"blk.0.ffn_up.weight": np.zeros((72, 48), np.float32)}, "asks for .144, 48."),
        ({"blk.0.attn_q_norm.weight": np.zeros(8, np.float32)}, "attn_q_norm"),
        ({"position_embd.weight": np.zeros((64, 48), np.float32)}, "position_embd"),
        ({"cls.weight": np.zeros((1, 48), np.float32)}, "cls.weight"),
    ],
)
def test_jina_bert_that_cannot_be_served_is_refused_by_name(
    tensors: dict[str, Any], what: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedTensor, match=what):
        read(write(tmp_path, "jina-bert-v2", tensors=tensors))


@pytest.mark.parametrize(
    "architecture", ["jina-bert-v3", "nomic-bert-moe", "neo-bert", "eurobert", "t5encoder"]
)
def test_encoders_without_a_row_are_refused_by_name(architecture: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match=f"'{architecture}' is not .* modern-bert"):
        read(write(tmp_path, "bert", keys={"general.architecture": architecture}))


@pytest.mark.parametrize(
    ("name", "declared", "pooling", "num_scores"),
    [
        ("bert", None, PoolingType.MEAN, 0),
        ("bert", 0, PoolingType.MEAN, 0),
        ("bert", 3, PoolingType.LAST, 0),
        ("ranker", None, PoolingType.RANK, 1),
        ("ranker", 4, PoolingType.RANK, 1),
        ("ranker", 2, PoolingType.CLS, 0),
    ],
)
def test_files_that_do_not_say_how_to_pool_show_it_by_their_head(
    name: str, declared: int | None, pooling: PoolingType, num_scores: int, tmp_path: Path
) -> None:
    path = write(tmp_path, name, keys={"bert.pooling_type": declared})
    config = read(path)
    assert (config.pooling, config.num_scores) == (pooling, num_scores)
    with open_gguf(path) as file:
        weights = load_weights(config, read_checkpoint(file).weights, Tensor.to_float32)
    assert (weights.head is not None) == (pooling is PoolingType.RANK)


def test_a_head_of_one_row_may_have_lost_an_axis(tmp_path: Path) -> None:
    scores = gguf_tensors(by_name("ranker"))["cls.output.weight"]
    path = write(tmp_path, "ranker", tensors={"cls.output.weight": scores.reshape(-1)})
    config = read(path)
    with open_gguf(path) as file:
        weights = load_weights(config, read_checkpoint(file).weights, Tensor.to_float32)
    assert weights.head is not None
    np.testing.assert_array_equal(weights.head.scores, scores)


def test_fused_matrices_are_taken_apart(tmp_path: Path) -> None:
    path = write(tmp_path, "nomic-bert")
    config = read(path)
    shares: list[float] = []
    with open_gguf(path) as file:
        weights = load_weights(
            config, read_checkpoint(file).weights, Tensor.to_float32, shares.append
        )
    fused = gguf_tensors(by_name("nomic-bert"))["blk.1.attn_qkv.weight"]
    layer = weights.layers[1]
    attention = present(layer.attention)
    parts = [attention.q, present(attention.k), present(attention.v)]
    np.testing.assert_array_equal(np.concatenate(parts), fused)
    assert present(layer.feed_forward).gate is not None
    assert weights.embedding.position is None
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize(
    ("keys", "error", "what"),
    [
        ({"bert.attention.causal": True}, UnsupportedArchitecture, "causal"),
        ({"bert.pooling_type": 4}, UnsupportedTensor, "cls.output.weight"),
        ({"bert.attention.head_count": 5}, BadGguf, "head_count"),
        ({"bert.attention.head_count_kv": 2}, BadGguf, "head_count_kv"),
        ({"bert.attention.key_length": 10}, BadGguf, "key_length"),
        ({"bert.attention.layer_norm_epsilon": 0.0}, BadGguf, "layer_norm_epsilon"),
        ({"bert.context_length": 0}, BadGguf, "context_length"),
        ({"bert.context_length": 65}, UnsupportedTensor, "position_embd"),
        ({"bert.vocab_size": 96}, BadGguf, "vocab_size"),
        ({"bert.block_count": 3}, UnsupportedTensor, "blk.2"),
        ({"bert.block_count": 1}, UnsupportedTensor, "blk.1"),
        ({"tokenizer.ggml.token_type_count": 3}, UnsupportedTensor, "token_types"),
        ({"general.architecture": "t5"}, UnsupportedArchitecture, "nomic-bert"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    keys: dict[str, Any], error: type[RocmForgeError], what: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=what):
        read(write(tmp_path, "bert", keys=keys))


def test_windows_of_gemma_count_both_sides_and_every_so_manyth_layer_has_none(
    tmp_path: Path,
) -> None:
    config = read(write(tmp_path, "gemma-embedding"))
    assert reaches_of(config) == (9, 9, None, 9)
    assert config.pooling is PoolingType.MEAN
    assert {(layer.num_heads, layer.num_kv_heads) for layer in config.layers} == {(4, 2)}


@pytest.mark.parametrize("suffix", ["2", "3"])
def test_matrices_behind_the_pooling_are_one_where_there_are_some(
    suffix: str, tmp_path: Path
) -> None:
    both = [f"dense_{number}.weight" for number in "23"]
    stored = gguf_tensors(by_name("gemma-embedding"))
    with open_gguf(write(tmp_path, "gemma-embedding")) as file:
        dense = read_checkpoint(file).weights["dense"].to_float32()
    np.testing.assert_allclose(dense, stored[both[1]] @ stored[both[0]], rtol=1e-5, atol=1e-5)
    with open_gguf(write(tmp_path, "gemma-embedding", tensors=dict.fromkeys(both))) as file:
        assert "dense" not in read_checkpoint(file).weights
    missing = {f"dense_{suffix}.weight": None}
    with pytest.raises(UnsupportedTensor, match=f"dense_{suffix}.weight.*missing"):
        read(write(tmp_path, "gemma-embedding", tensors=missing))
    other = {f"dense_{suffix}.weight": np.zeros((48, 40), np.float32)}
    with pytest.raises(UnsupportedTensor, match=r"dense_[23].weight.*its shape is"):
        read(write(tmp_path, "gemma-embedding", tensors=other))


@pytest.mark.parametrize(
    ("keys", "error", "what"),
    [
        ({"attention.causal": True}, UnsupportedArchitecture, "causal attention"),
        ({"attn_logit_softcapping": 5.0}, BadGguf, "attn_logit_softcapping"),
        ({"pooling_type": 4}, UnsupportedArchitecture, "classification head"),
    ],
)
def test_gemma_that_cannot_be_served_is_refused_by_name(
    keys: dict[str, Any], error: type[RocmForgeError], what: str, tmp_path: Path
) -> None:
    prefixed = {f"gemma-embedding.{key}": value for key, value in keys.items()}
    with pytest.raises(error, match=what):
        read(write(tmp_path, "gemma-embedding", keys=prefixed))


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"rope.freq_base": 0.5}, "freq_base"),
        ({"rope.dimension_count": 7}, "dimension_count"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "scaling"),
    ],
)
def test_ropes_that_cannot_be_served_are_refused(
    keys: dict[str, Any], what: str, tmp_path: Path
) -> None:
    prefixed = {f"nomic-bert.{key}": value for key, value in keys.items()}
    with pytest.raises(RocmForgeError, match=what):
        read(write(tmp_path, "nomic-bert", keys=prefixed))


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        ({"blk.0.attn_q.weight": None}, "attn_q.weight"),
        ({"blk.0.attn_q.weight": np.zeros((48, 40), np.float32)}, "attn_q.weight"),
        ({"blk.0.ffn_gate.weight": np.zeros((72, 48), np.float32)}, "ffn_gate"),
        ({"token_embd_norm.bias": None}, "token_embd_norm"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tensors: dict[str, Any], what: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedTensor, match=what):
        read(write(tmp_path, "bert", tensors=tensors))


def test_biases_and_token_types_may_be_missing(tmp_path: Path) -> None:
    names = [name for name in gguf_tensors(by_name("bert")) if "attn_q.bias" in name]
    path = write(tmp_path, "bert", tensors=dict.fromkeys([*names, "token_types.weight"]))
    config = read(path)
    with open_gguf(path) as file:
        weights = load_weights(config, read_checkpoint(file).weights, Tensor.to_float32)
    assert weights.embedding.type is None
    assert present(weights.layers[0].attention).q_bias is None


def test_decoders_are_read_as_before(tmp_path: Path) -> None:
    path = model_files.write_model(tiny_models.by_name("llama"), tmp_path)
    with open_gguf(path) as file:
        assert read_checkpoint(file).config.causal
