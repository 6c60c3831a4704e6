"""Our names of the tensors in a GGUF file of a tower."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

OUTSIDE_LAYERS: Final = MappingProxyType(
    {
        "v.patch_embd.weight": "patches.matrix",
        "v.patch_embd.bias": "patches.bias",
        "v.position_embd.weight": "embedding.token",
        "v.post_ln.weight": "output_norm",
        "v.post_ln.bias": "output_norm_bias",
        "mm.model.fc.weight": "projector.matrix",  # of Idefics3; of Gemma 3:
        "mm.input_projection.weight": "projector.matrix",
        "mm.soft_emb_norm.weight": "projector.norm",
        # Of Pixtral and Mistral 3, but for the last.
        "v.pre_ln.weight": "embedding.norm",
        "mm.input_norm.weight": "output_norm",
        "mm.patch_merger.weight": "projector.merger",
        "mm.1.weight": "projector.inner",
        "mm.1.bias": "projector.inner_bias",
        # Of Gemma 4.
        "v.std_bias": "projector.shift",
        "v.std_scale": "projector.scale",
        # Of Gemma 4 12B.
        "v.patch_norm.1.weight": "patches.norm",
        "v.patch_norm.1.bias": "patches.norm_bias",
        "v.patch_norm.2.weight": "patches.output_norm",
        "v.patch_norm.2.bias": "patches.output_norm_bias",
        "v.patch_norm.3.weight": "output_norm",
        "v.patch_norm.3.bias": "output_norm_bias",
        # Of InternVL.
        "v.class_embd": "embedding.class_token",
        "mm.model.mlp.0.weight": "projector.row_norm",
        "mm.model.mlp.0.bias": "projector.row_norm_bias",
        "mm.model.mlp.1.weight": "projector.inner",
        "mm.model.mlp.1.bias": "projector.inner_bias",
        "mm.model.mlp.3.weight": "projector.matrix",
        "mm.model.mlp.3.bias": "projector.matrix_bias",
        # Of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.
        "mm.0.weight": "projector.inner",
        "mm.0.bias": "projector.inner_bias",
        "mm.2.weight": "projector.matrix",
        "mm.2.bias": "projector.matrix_bias",
    }
)
"""Names of weights that are of no layer, and ours."""
_IN_LAYERS: Final = MappingProxyType(
    {
        "attn_q": "attention.q",
        "attn_k": "attention.k",
        "attn_v": "attention.v",
        "attn_out": "attention.output",
        "attn_q_norm": "attention.q_norm",
        "attn_k_norm": "attention.k_norm",
        "attn_post_norm": "attention_post_norm",
        "ffn_post_norm": "feed_forward_post_norm",
        "ln1": "attention_norm",
        "ln2": "feed_forward_norm",
        "ls1": "attention_scale",
        "ls2": "feed_forward_scale",
        "ffn_gate": "feed_forward.gate",
        "ffn_up": "feed_forward.up",
        "ffn_down": "feed_forward.down",
    }
)
_IN_MERGERS: Final = MappingProxyType({"norm": "norm", "fc1": "inner", "fc2": "matrix"})
_QKV: Final = "attn_qkv"
# The bounds of a product are one tensor: see `join_bounds`.
_ENDS: Final = MappingProxyType({"weight": "", "bias": "_bias", "input_min": "_bounds"})
_LAYER: Final = re.compile(rf"v\.(blk|deepstack)\.(\d{{1,4}})\.(\w+)\.({'|'.join(_ENDS)})")


def paths_of(name: str) -> tuple[str, ...]:
    """Returns our names of the weights in a tensor; one that is none is refused later."""
    if (match := _LAYER.fullmatch(name)) is not None:
        stem, part = f"layers.{int(match[2])}", match[3]
        end = _ENDS[match[4]]
        if match[1] == "deepstack" and part in _IN_MERGERS:
            return (f"{stem}.merger.{_IN_MERGERS[part]}{end}",)
        if match[1] == "blk" and part == _QKV:
            return tuple(f"{stem}.attention.{each}{end}" for each in "qkv")
        if match[1] == "blk" and part in _IN_LAYERS:
            return (f"{stem}.{_IN_LAYERS[part]}{end}",)
    return (OUTSIDE_LAYERS.get(name, f"no weight: {name}"),)
