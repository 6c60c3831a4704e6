"""A tiny model of random weights, to verify a device with where there is no real one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

_DIM: Final = 256
_FFN: Final = 512
_HEADS: Final = 4
_KV_HEADS: Final = 2
_HEAD_DIM: Final = 64
_LAYERS: Final = 2
_OUTPUT_SCALE: Final = 4.0  # so that some tokens are much more probable than others
VOCAB: Final = 512
CONTEXT: Final = 512


def write_synthetic_model(path: Path) -> None:
    """Writes a Llama of two layers in Q8_0 and Q4_0, always the same; without a tokenizer."""
    writer = GGUFWriter(path, "llama")
    writer.add_name("synthetic")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_DIM)
    writer.add_feed_forward_length(_FFN)
    writer.add_block_count(_LAYERS)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    rng = np.random.default_rng(0)
    for name, (rows, columns, kind) in _matrices().items():
        values = rng.standard_normal((rows, columns)) / np.sqrt(columns)
        if name == "output.weight":
            values *= _OUTPUT_SCALE
        writer.add_tensor(name, quantize(values.astype(np.float32), kind), raw_dtype=kind)
    for name in _norms():
        values = 1 + 0.1 * rng.standard_normal(_DIM)
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _matrices() -> dict[str, tuple[int, int, GGMLQuantizationType]]:
    q8, q4 = GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0
    attended, kv_width = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
    found = {"token_embd.weight": (VOCAB, _DIM, q8), "output.weight": (VOCAB, _DIM, q8)}
    for layer in range(_LAYERS):
        found |= {
            f"blk.{layer}.attn_q.weight": (attended, _DIM, q4),
            f"blk.{layer}.attn_k.weight": (kv_width, _DIM, q4),
            f"blk.{layer}.attn_v.weight": (kv_width, _DIM, q8),
            f"blk.{layer}.attn_output.weight": (_DIM, attended, q4),
            f"blk.{layer}.ffn_gate.weight": (_FFN, _DIM, q4),
            f"blk.{layer}.ffn_up.weight": (_FFN, _DIM, q4),
            f"blk.{layer}.ffn_down.weight": (_DIM, _FFN, q8),
        }
    return found


def _norms() -> list[str]:
    names = [
        f"blk.{layer}.{kind}_norm.weight" for layer in range(_LAYERS) for kind in ("attn", "ffn")
    ]
    return [*names, "output_norm.weight"]
