"""Tiny random models that take images, as folders in Hugging Face's layout and as GGUF files.

A recipe is a configuration of Transformers and a seed. `make_tower_goldens.py` records what
Transformers computes with those weights, from pixels to logits.
"""

from __future__ import annotations

from typing import Final

from tests.data.models.towers.tiny_tower import PLACEHOLDER, TEXT, TinyTower

_VISION: Final = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 8,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}

SMOLVLM: Final = TinyTower(
    name="smolvlm",
    config={
        "model_type": "smolvlm",
        "image_token_id": PLACEHOLDER,
        "scale_factor": 2,
        "tie_word_embeddings": False,
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {"model_type": "smolvlm_vision", **_VISION},
    },
    processor={
        "do_image_splitting": True,
        "max_image_size": {"longest_edge": 64},
        "size": {"longest_edge": 192},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 1,
        "rescale_factor": 1 / 255,
    },
    seed=31,
)
_LAYER_TYPES: Final = ("sliding_attention", "full_attention", "sliding_attention")
GEMMA3: Final = TinyTower(
    name="gemma3",
    # Heads of 72, networks and patches whose sizes no 32 divides, and a window that is smaller than
    # an image.
    config={
        "model_type": "gemma3",
        "image_token_index": PLACEHOLDER,
        "mm_tokens_per_image": 16,
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "gemma3_text",
            **TEXT,
            "num_hidden_layers": len(_LAYER_TYPES),
            "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 64,
            "sliding_window": 7,
            "layer_types": list(_LAYER_TYPES),
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            **_VISION,
            "hidden_size": 288,
            "num_attention_heads": 4,
            "intermediate_size": 176,
            "image_size": 112,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
    processor={
        "do_pan_and_scan": None,
        "size": {"height": 112, "width": 112},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 2,
        "rescale_factor": 1 / 255,
    },
    seed=32,
)
_QWEN_VISION: Final = {
    "model_type": "qwen3_vl_vision",
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 2,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 128,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 1],
    "hidden_act": "gelu_pytorch_tanh",
}
QWEN3_VL: Final = TinyTower(
    name="qwen3_vl",
    config={
        "model_type": "qwen3_vl",
        "image_token_id": PLACEHOLDER,
        "video_token_id": 95,
        "vision_start_token_id": 94,
        "vision_end_token_id": 93,
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_vl_text",
            **TEXT,
            "num_hidden_layers": 3,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [12, 10, 10],
                "mrope_interleaved": True,
            },
        },
        "vision_config": _QWEN_VISION,
    },
    processor={
        "size": {"shortest_edge": 1024, "longest_edge": 16384},
        "patch_size": 8,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 3,
        "rescale_factor": 1 / 255,
    },
    seed=38,
)
QWEN35: Final = TinyTower(
    name="qwen3_5",
    # Most of its layers have states, and its tower makes no rows for inner layers.
    config={
        **QWEN3_VL.config,
        "model_type": "qwen3_5",
        "text_config": {
            "model_type": "qwen3_5_text",
            **TEXT,
            "num_hidden_layers": 3,
            "rms_norm_eps": 1e-6,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            **{key: value for key, value in _QWEN_VISION.items() if "deepstack" not in key},
            "model_type": "qwen3_5_vision",
            # Heads of 72, and networks whose size no 32 divides.
            "hidden_size": 288,
            "intermediate_size": 176,
            "num_heads": 4,
        },
    },
    processor=QWEN3_VL.processor,
    seed=41,
)
TOWERS: Final = (SMOLVLM, GEMMA3, QWEN3_VL, QWEN35)
IN_FILES: Final = (SMOLVLM, GEMMA3, QWEN3_VL)
"""Those that are written as GGUF files, too: the tower of Qwen 3.5 is as that of Qwen3-VL."""
