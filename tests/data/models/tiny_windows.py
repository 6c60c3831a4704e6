"""A tiny random model with the tower of Qwen2.5-VL, most of whose layers see windows."""

from __future__ import annotations

from typing import Any, Final

from tests.data.models.tiny_towers import QWEN3_VL, TEXT, TinyTower, text_shapes


class TinyWindows(TinyTower):
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
    size, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    merged = size * vision["spatial_merge_size"] ** 2
    parts: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (size, 3, vision["temporal_patch_size"], patch, patch),
        "merger.ln_q.weight": (size,),
    }
    linear = {"merger.mlp.0": (merged, merged), "merger.mlp.2": (vision["out_hidden_size"], merged)}
    for index in range(vision["depth"]):
        stem = f"blocks.{index}"
        parts |= {f"{stem}.{norm}.weight": (size,) for norm in ("norm1", "norm2")}
        linear |= {
            f"{stem}.attn.qkv": (3 * size, size),
            f"{stem}.attn.proj": (size, size),
            f"{stem}.mlp.gate_proj": (inner, size),
            f"{stem}.mlp.up_proj": (inner, size),
            f"{stem}.mlp.down_proj": (size, inner),
        }
    for name, shape in linear.items():
        parts |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return {prefix + name: shape for name, shape in parts.items()}


QWEN25_VL: Final = TinyWindows(
    name="qwen2_5_vl",
    # Windows that do not divide pictures, and networks whose size no 32 divides.
    config={
        **QWEN3_VL.config,
        "model_type": "qwen2_5_vl",
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            **{key: value for key, value in TEXT.items() if key != "head_dim"},
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [8, 12, 12],
            },
        },
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
