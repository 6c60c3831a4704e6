"""Writes a Qwen3.5 of a real model's shape with random weights, to measure speed with.

    python -m benchmarks.synthetic_qwen qwen35moe.gguf --shape 35b-a3b

Matrices have the types that llama.cpp gives those of Q4_K_M, which reads such files as well. The
vocabulary has bytes and no words, and all layers of a kind have the same weights. The shared expert
may have a type of its own, as in files whose makers give it more bits than the others.

With `--mtp` there is a predictor that is always right: no layer adds anything, so that what follows
a token depends on that token alone, and the predictor looks at no more.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.synthetic_vocabulary import vocabulary
from tests.support.files.gguf_writer import Stored, Value, write_gguf
from tests.support.models.shallow import with_right_predictor
from tests.support.operands.weights import ggml_type, random_matrix

Tensors = dict[str, npt.NDArray[Any] | Stored]

HEAD_DIM = 256
DELTA_DIM = 128
KEY_HEADS = 16
PERIOD = 4
"""One of so many layers has attention."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that are needed to compute what such a model computes."""

    architecture: str
    layers: int
    hidden_size: int
    intermediate_size: int  # of an expert, if there are any, and of the one that is shared
    heads: int
    kv_heads: int
    value_heads: int
    experts: int = 0
    used_experts: int = 0
    vocab: int = 248_320
    shared_type: str | None = None  # of the shared expert; None: as the others


SHAPES: Mapping[str, Shape] = {
    "35b-a3b": Shape("qwen35moe", 40, 2048, 512, 16, 2, 32, 256, 8),
    "27b": Shape("qwen35", 64, 5120, 17408, 24, 4, 48),
    "4b": Shape("qwen35", 32, 2560, 9216, 16, 4, 32),
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="35b-a3b")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--mtp", action="store_true", help="with a predictor")
    parser.add_argument("--shared-type", metavar="TYPE", help="of the shared expert, as q8_0")
    options = parser.parse_args()
    shape = replace(SHAPES[options.shape], shared_type=options.shared_type)
    write_synthetic(options.path, shape, options.layers or shape.layers, predicts=options.mtp)


def write_synthetic(path: Path, shape: Shape, layers: int, *, predicts: bool = False) -> Path:
    """Writes so many layers of the model, and a predictor behind them."""
    rng = np.random.default_rng(0)

    @cache
    def matrix(kind: str, *sizes: int) -> Stored:
        *outer, rows, columns = sizes
        count = int(np.prod([*outer, rows]))
        random = random_matrix(rng, kind, count, columns, magnitude=1 / sqrt(columns))
        return Stored(random.raw.reshape(*outer, rows, -1), ggml_type(kind))

    tensors: Tensors = {
        "token_embd.weight": matrix("q4_k", shape.vocab, shape.hidden_size),
        "output.weight": matrix("q6_k", shape.vocab, shape.hidden_size),
        "output_norm.weight": np.ones(shape.hidden_size, np.float32),
    }
    for index in range(layers):
        # As llama.cpp chooses the layers that get more bits.
        eighth = layers // 8
        more = index < eighth or index >= 7 * eighth or (index - eighth) % 3 == 2
        parts = _layer(shape, index, "q6_k" if more else "q4_k", matrix, rng)
        tensors |= {f"blk.{index}.{name}": values for name, values in parts}
    metadata = _metadata(path.stem, shape, layers)
    if predicts:
        parts = _layer(shape, PERIOD - 1, "q6_k", matrix, rng)  # one with attention
        tensors |= {f"blk.{layers}.{name}": values for name, values in parts}
        tensors = with_right_predictor(tensors, layers, shape.hidden_size)
        metadata[f"{shape.architecture}.block_count"] = layers + 1
        metadata[f"{shape.architecture}.nextn_predict_layers"] = 1
    return write_gguf(path, metadata, tensors)


def _layer(
    shape: Shape, index: int, more: str, matrix: Any, rng: np.random.Generator
) -> Iterator[tuple[str, npt.NDArray[Any] | Stored]]:
    """Yields the tensors of a layer; `more` is the type of those that get more bits."""
    hidden, inner, experts = shape.hidden_size, shape.intermediate_size, shape.experts
    keys, values = KEY_HEADS * DELTA_DIM, shape.value_heads * DELTA_DIM
    for name in ("attn_norm", "post_attention_norm"):
        yield f"{name}.weight", np.ones(hidden, np.float32)
    if (index + 1) % PERIOD:
        yield "attn_qkv.weight", matrix(more, 2 * keys + values, hidden)
        yield "attn_gate.weight", matrix("q4_k", values, hidden)
        yield "ssm_alpha.weight", matrix("q4_k", shape.value_heads, hidden)
        yield "ssm_beta.weight", matrix("q4_k", shape.value_heads, hidden)
        yield "ssm_a", -rng.uniform(0.1, 8, shape.value_heads).astype(np.float32)
        yield "ssm_dt.bias", rng.uniform(-4, 0, shape.value_heads).astype(np.float32)
        filters = rng.standard_normal((2 * keys + values, 4)) / 2
        yield "ssm_conv1d.weight", filters.astype(np.float32)
        yield "ssm_norm.weight", np.ones(DELTA_DIM, np.float32)
        yield "ssm_out.weight", matrix("q4_k", hidden, values)
    else:
        queries, others = shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM
        yield "attn_q.weight", matrix("q4_k", 2 * queries, hidden)
        yield "attn_k.weight", matrix("q4_k", others, hidden)
        yield "attn_v.weight", matrix(more, others, hidden)
        yield "attn_q_norm.weight", np.ones(HEAD_DIM, np.float32)
        yield "attn_k_norm.weight", np.ones(HEAD_DIM, np.float32)
        yield "attn_output.weight", matrix("q4_k", hidden, queries)
    if not experts:
        yield "ffn_gate.weight", matrix("q4_k", inner, hidden)
        yield "ffn_up.weight", matrix("q4_k", inner, hidden)
        yield "ffn_down.weight", matrix(more, hidden, inner)
        return
    router = rng.standard_normal((experts, hidden)) / sqrt(hidden)
    yield "ffn_gate_inp.weight", router.astype(np.float32)
    yield "ffn_gate_exps.weight", matrix("q4_k", experts, inner, hidden)
    yield "ffn_up_exps.weight", matrix("q4_k", experts, inner, hidden)
    yield "ffn_down_exps.weight", matrix(more, experts, hidden, inner)
    yield "ffn_gate_inp_shexp.weight", router[0].astype(np.float32)
    yield "ffn_gate_shexp.weight", matrix(shape.shared_type or "q4_k", inner, hidden)
    yield "ffn_up_shexp.weight", matrix(shape.shared_type or "q4_k", inner, hidden)
    yield "ffn_down_shexp.weight", matrix(shape.shared_type or more, hidden, inner)


def _metadata(name: str, shape: Shape, layers: int) -> dict[str, Value]:
    keys: dict[str, Value] = {
        "block_count": layers,
        "context_length": 262_144,
        "embedding_length": shape.hidden_size,
        "feed_forward_length": shape.intermediate_size,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": HEAD_DIM // 4,
        "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
        "full_attention_interval": PERIOD,
        "ssm.conv_kernel": 4,
        "ssm.state_size": DELTA_DIM,
        "ssm.group_count": KEY_HEADS,
        "ssm.time_step_rank": shape.value_heads,
        "ssm.inner_size": shape.value_heads * DELTA_DIM,
        "vocab_size": shape.vocab,
    }
    if shape.experts:
        keys |= {
            "expert_count": shape.experts,
            "expert_used_count": shape.used_experts,
            "expert_feed_forward_length": shape.intermediate_size,
            "expert_shared_feed_forward_length": shape.intermediate_size,
        }
    return {
        "general.architecture": shape.architecture,
        "general.name": name,
        **{f"{shape.architecture}.{key}": value for key, value in keys.items()},
        **vocabulary(shape.vocab, "qwen35"),
    }


if __name__ == "__main__":
    main()
