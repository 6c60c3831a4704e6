"""Writes a Llama of a real model's shape with random weights, to measure speed with.

    python -m benchmarks.synthetic_model llama-8b.gguf --shape llama-8b --type q4_k

The vocabulary has bytes and no words, and every layer has the same weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.synthetic_vocabulary import vocabulary
from tests.support.files.gguf_writer import Stored, Value, write_gguf
from tests.support.operands.weights import FLOAT_TYPES, QUANTISED_TYPES, ggml_type, random_matrix


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that are needed to compute what such a model computes."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    vocab: int
    rope_base: float


SHAPES: Mapping[str, Shape] = {
    "llama-8b": Shape(32, 4096, 14336, 32, 8, 128256, 500_000.0),
    "llama-1b": Shape(16, 2048, 8192, 32, 8, 128256, 500_000.0),
    "tiny": Shape(6, 256, 512, 4, 2, 512, 10_000.0),
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b")
    parser.add_argument("--type", choices=(*FLOAT_TYPES, *QUANTISED_TYPES), default="q4_k")
    options = parser.parse_args()
    write_synthetic(options.path, SHAPES[options.shape], options.type)


def write_synthetic(path: Path, shape: Shape, kind: str) -> Path:
    """Writes the model with matrices of this stored type."""
    rng = np.random.default_rng(0)

    @cache
    def matrix(rows: int, columns: int) -> Stored:
        random = random_matrix(rng, kind, rows, columns, magnitude=1 / sqrt(columns))
        return Stored(random.raw, ggml_type(kind))

    head_dim = shape.hidden_size // shape.heads
    kv_dim = shape.kv_heads * head_dim
    norm = np.ones(shape.hidden_size, np.float32)
    tensors: dict[str, npt.NDArray[np.float32] | Stored] = {
        "token_embd.weight": matrix(shape.vocab, shape.hidden_size),
        "output.weight": matrix(shape.vocab, shape.hidden_size),
        "output_norm.weight": norm,
    }
    for layer in range(shape.layers):
        parts: dict[str, npt.NDArray[np.float32] | Stored] = {
            "attn_norm": norm,
            "attn_q": matrix(shape.hidden_size, shape.hidden_size),
            "attn_k": matrix(kv_dim, shape.hidden_size),
            "attn_v": matrix(kv_dim, shape.hidden_size),
            "attn_output": matrix(shape.hidden_size, shape.hidden_size),
            "ffn_norm": norm,
            "ffn_gate": matrix(shape.intermediate_size, shape.hidden_size),
            "ffn_up": matrix(shape.intermediate_size, shape.hidden_size),
            "ffn_down": matrix(shape.hidden_size, shape.intermediate_size),
        }
        tensors |= {f"blk.{layer}.{name}.weight": values for name, values in parts.items()}
    metadata: dict[str, Value] = {
        "general.name": path.stem,
        "llama.context_length": 8192,
        "llama.embedding_length": shape.hidden_size,
        "llama.feed_forward_length": shape.intermediate_size,
        "llama.block_count": shape.layers,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": shape.rope_base,
        "llama.rope.dimension_count": head_dim,
        "llama.vocab_size": shape.vocab,
        **vocabulary(shape.vocab, "llama-bpe"),
    }
    return write_gguf(path, metadata, tensors)


if __name__ == "__main__":
    main()
