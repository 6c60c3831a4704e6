"""GGUF files of real models' shapes that hold no weights, for planning them.

Their headers name every tensor with its shape and type; behind it is a hole, which takes no room on
a disk. Types are those of llama.cpp's Q4_K_M, or MXFP4 and Q8_0 for gpt-oss.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter
from gguf.constants import GGMLQuantizationType as Type

_FILE: Final = Path(__file__).with_name("shapes.toml")
_ALIGNMENT: Final = 32
_K_BLOCK: Final = 256
_ROPE_BASE: Final = 1e6  # of no consequence for sizes
_Tensor = tuple[str, Type, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """The layers with states of Qwen3.5: all but each fourth."""

    value_heads: int
    key_heads: int = 16
    size: int = 128  # of a head
    filter: int = 4
    period: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape:
    """The experts of a layer."""

    count: int
    used: int
    width: int
    shared: int = 0  # width of the one for all tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    feed_forward: int = 0  # of layers without experts
    experts: ExpertsShape | None = None
    dense_layers: int = 0  # that come before those with experts
    window: int = 0
    is_tied: bool = False
    delta: DeltaShape | None = None

    @property
    def is_harmony(self) -> bool:
        """Whether it is gpt-oss, with its own types, biases and sinks."""
        return self.architecture == "gpt-oss"

    @property
    def quantisation(self) -> str:
        """Its name, as in those of files."""
        return "MXFP4" if self.is_harmony else "Q4_K_M"


def read_shapes() -> dict[str, ModelShape]:
    """Returns the shapes of shapes.toml, by the short names of models."""
    return msgspec.convert(tomllib.loads(_FILE.read_text("utf-8")), dict[str, ModelShape])


def write_header(path: Path, shape: ModelShape) -> None:
    """Writes a GGUF file of the shape whose weights are a hole."""
    writer = GGUFWriter(path, shape.architecture)
    writer.add_name(path.stem)
    for key, value in _metadata(shape).items():
        name = f"{shape.architecture}.{key}"
        if isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    size = 0
    for name, kind, sizes in tensors(shape):
        block, block_bytes = GGML_QUANT_SIZES[kind]
        nbytes = prod(sizes) // block * block_bytes
        writer.add_tensor_info(name, sizes, np.dtype(np.float32), nbytes, raw_dtype=kind)
        size += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    begin = -(-path.stat().st_size // _ALIGNMENT) * _ALIGNMENT
    with path.open("r+b") as file:
        file.truncate(begin + size)


def _metadata(shape: ModelShape) -> Mapping[str, int | float | str | list[int]]:
    keys: dict[str, int | float | str | list[int]] = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.feed_forward or (shape.experts.width if shape.experts else 0),
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": _ROPE_BASE,
        "rope.dimension_count": shape.head_dim,
        "vocab_size": shape.vocab,
    }
    if shape.window:
        keys["attention.sliding_window"] = shape.window
    if experts := shape.experts:
        keys |= {
            "expert_count": experts.count,
            "expert_used_count": experts.used,
            "expert_feed_forward_length": experts.width,
        }
        if experts.shared:
            keys |= {
                "expert_shared_count": 1,
                "expert_shared_feed_forward_length": experts.shared,
            }
    if shape.dense_layers:
        keys |= {"leading_dense_block_count": shape.dense_layers, "expert_gating_func": 2}
    if delta := shape.delta:
        keys |= {
            "rope.dimension_count": shape.head_dim // 4,
            "rope.dimension_sections": [11, 11, 10, 0],
            "full_attention_interval": delta.period,
            "ssm.conv_kernel": delta.filter,
            "ssm.state_size": delta.size,
            "ssm.group_count": delta.key_heads,
            "ssm.time_step_rank": delta.value_heads,
            "ssm.inner_size": delta.value_heads * delta.size,
        }
    return keys


def tensors(shape: ModelShape) -> Iterator[_Tensor]:
    """Yields names, types and shapes of all tensors of the file; rows come before columns."""
    usual, most = (Type.Q8_0, Type.Q8_0) if shape.is_harmony else (Type.Q4_K, Type.Q6_K)
    table = most if shape.is_tied else usual
    yield "token_embd.weight", table, (shape.vocab, shape.hidden)
    yield "output_norm.weight", Type.F32, (shape.hidden,)
    if not shape.is_tied:
        yield "output.weight", most, (shape.vocab, shape.hidden)
    eighth = shape.layers // 8
    for layer in range(shape.layers):
        # As llama.cpp chooses the layers that get more bits.
        is_more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        for name, kind, sizes in _layer(shape, layer, usual, most if is_more else usual):
            yield f"blk.{layer}.{name}", kind, sizes


def _layer(shape: ModelShape, layer: int, usual: Type, more: Type) -> Iterator[_Tensor]:
    """Yields the tensors of a layer; `more` is the type of those that may get more bits."""
    hidden, delta, experts = shape.hidden, shape.delta, shape.experts
    for name in _norms(shape):
        yield f"{name}.weight", Type.F32, (hidden,)
    if delta is not None and (layer + 1) % delta.period:
        yield from _delta(hidden, delta, usual, more)
    else:
        yield from _attention(shape, usual, more)
    if experts is None or layer < shape.dense_layers:
        yield from _feed_forward("", (), hidden, shape.feed_forward, usual, more)
        return
    yield "ffn_gate_inp.weight", Type.F32, (experts.count, hidden)
    kinds = (Type.MXFP4, Type.MXFP4) if shape.is_harmony else (usual, more)
    yield from _feed_forward("_exps", (experts.count,), hidden, experts.width, *kinds)
    if experts.shared:
        yield from _feed_forward("_shexp", (), hidden, experts.shared, usual, more)
    if shape.delta is not None:
        yield "ffn_gate_inp_shexp.weight", Type.F32, (hidden,)
    if shape.architecture == "glm4moe":
        yield "exp_probs_b.bias", Type.F32, (experts.count,)
    if shape.is_harmony:
        yield "ffn_gate_inp.bias", Type.F32, (experts.count,)
        for name, width in (("gate", experts.width), ("up", experts.width), ("down", hidden)):
            yield f"ffn_{name}_exps.bias", Type.F32, (experts.count, width)


def _norms(shape: ModelShape) -> tuple[str, ...]:
    if shape.architecture == "gemma3":
        return "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"
    if shape.architecture in ("gpt-oss", "glm4moe", "qwen35", "qwen35moe"):
        return "attn_norm", "post_attention_norm"
    return "attn_norm", "ffn_norm"


def _attention(shape: ModelShape, usual: Type, more: Type) -> Iterator[_Tensor]:
    queries, others = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    gated = 2 if shape.delta is not None else 1  # a gate of the result beside each query
    for name, kind, rows in (
        ("attn_q", usual, gated * queries),
        ("attn_k", usual, others),
        ("attn_v", _of_values(shape, more), others),
    ):
        yield f"{name}.weight", kind, (rows, shape.hidden)
        if shape.is_harmony or shape.architecture == "glm4moe":
            yield f"{name}.bias", Type.F32, (rows,)
    yield "attn_output.weight", usual, (shape.hidden, queries)
    if shape.is_harmony:
        yield "attn_output.bias", Type.F32, (shape.hidden,)
        yield "attn_sinks.weight", Type.F32, (shape.heads,)
    if shape.architecture.startswith(("qwen3", "gemma3")):
        for name in ("attn_q_norm", "attn_k_norm"):
            yield f"{name}.weight", Type.F32, (shape.head_dim,)


def _of_values(shape: ModelShape, more: Type) -> Type:
    """Returns the type of the values' matrix, which has more bits in Llama 70B."""
    return Type.Q5_K if shape.hidden == 8192 and more is Type.Q4_K else more


def _delta(hidden: int, delta: DeltaShape, usual: Type, more: Type) -> Iterator[_Tensor]:
    values = delta.value_heads * delta.size
    mixed = 2 * delta.key_heads * delta.size + values
    yield "attn_qkv.weight", more, (mixed, hidden)
    yield "attn_gate.weight", usual, (values, hidden)
    for name in ("ssm_alpha", "ssm_beta"):
        yield f"{name}.weight", usual, (delta.value_heads, hidden)
    for name in ("ssm_a", "ssm_dt.bias"):
        yield name, Type.F32, (delta.value_heads,)
    yield "ssm_conv1d.weight", Type.F32, (mixed, delta.filter)
    yield "ssm_norm.weight", Type.F32, (delta.size,)
    yield "ssm_out.weight", usual, (hidden, values)


def _feed_forward(
    suffix: str, outer: tuple[int, ...], hidden: int, width: int, usual: Type, more: Type
) -> Iterator[_Tensor]:
    for name in ("gate", "up"):
        yield f"ffn_{name}{suffix}.weight", usual, (*outer, width, hidden)
    if width % _K_BLOCK:  # llama.cpp's choice for rows that no K type divides
        more = {Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0}.get(more, more)
    yield f"ffn_down{suffix}.weight", more, (*outer, hidden, width)
