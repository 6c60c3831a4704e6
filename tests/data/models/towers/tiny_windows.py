"""Tiny random models with the towers of Qwen2-VL and of Qwen2.5-VL.

Most layers of the latter see windows.
"""

from __future__ import annotations

from typing import Any, Final

from tests.data.models.towers.tiny_tower import TEXT, TinyTower, text_shapes, tower_sizes
from tests.data.models.towers.tiny_towers import QWEN3_VL

_TEXT: Final = {
    **{key: value for key, value in TEXT.items() if key != "head_dim"},
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [8, 12, 12],
    },
}


class TinyMerging(TinyTower):
    """A recipe."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        text = self.config["text_config"]
        return {
            **text_shapes("model.language_model.", text),
            **_tower_shapes("model.visual.", self.config["vision_config"]),
            "lm_head.weight": (text["vocab_size"], text["hidden_size"]),
        }


def _tower_shapes(prefix: str, vision: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    size, inner, out = tower_sizes(vision)
    patch, merged = vision["patch_size"], size * vision["spatial_merge_size"] ** 2
    has_bias = "embed_dim" in vision
    parts: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (size, 3, vision["temporal_patch_size"], patch, patch),
    }
    norms = ["merger.ln_q"]
    linear = {"merger.mlp.0": (merged, merged), "merger.mlp.2": (out, merged)}
    networks = {"fc1": (inner, size), "fc2": (size, inner)}
    if not has_bias:
        networks = {
            "gate_proj": (inner, size),
            "up_proj": (inner, size),
            "down_proj": (size, inner),
        }
    for index in range(vision["depth"]):
        stem = f"blocks.{index}"
        norms += [f"{stem}.norm1", f"{stem}.norm2"]
        linear |= {f"{stem}.attn.qkv": (3 * size, size), f"{stem}.attn.proj": (size, size)}
        linear |= {f"{stem}.mlp.{name}": shape for name, shape in networks.items()}
    for norm in norms:
        ends = ("weight", "bias") if has_bias else ("weight",)
        parts |= {f"{norm}.{end}": (size,) for end in ends}
    for name, shape in linear.items():
        parts |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return {prefix + name: shape for name, shape in parts.items()}


QWEN2_VL: Final = TinyMerging(
    name="qwen2_vl",
    config={
        **QWEN3_VL.config,
        "model_type": "qwen2_vl",
        "text_config": {"model_type": "qwen2_vl_text", **_TEXT},
        "vision_config": {
            "patch_size": 8,
            "spatial_merge_size": 2,
            "model_type": "qwen2_vl_vision",
            "depth": 3,
            "embed_dim": 64,
            "hidden_size": 128,
            "mlp_ratio": 3,
            "num_heads": 2,
            "temporal_patch_size": 2,
        },
    },
    processor=QWEN3_VL.processor,
    seed=59,
)
QWEN25_VL: Final = TinyMerging(
    name="qwen2_5_vl",
    # Windows that do not divide pictures, and networks whose size no 32 divides.
    config={
        **QWEN3_VL.config,
        "model_type": "qwen2_5_vl",
        "text_config": {"model_type": "qwen2_5_vl_text", **_TEXT},
        "vision_config": {
            "patch_size": 8,
            "spatial_merge_size": 2,
            "model_type": "qwen2_5_vl_vision",
            "depth": 4,
            "hidden_size": 160,
            "intermediate_size": 108,
            "num_heads": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 128,
            "hidden_act": "silu",
            "window_size": 48,
            "fullatt_block_indexes": [1, 3],
        },
    },
    processor=QWEN3_VL.processor,
    seed=47,
)
