"""Tiny models with states: recipes, and how the converter of llama.cpp changes their weights.

The seeds of those with experts are such that no token is near the border between two experts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.data.models.tiny_model import Shapes, Tensors, TinyModel, tiny_config
from tests.support.gguf_writer import Value

LONG_PROMPT: Final = tuple(7 * index % 89 for index in range(700))
LENGTHS: Final = (1, 63, 64, 65, 700)
"""Of prompts: beside and at the borders of chunks of 64 tokens, and beyond several."""


def _liquid_config(**changes: Any) -> dict[str, Any]:
    config = tiny_config(
        num_hidden_layers=4,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        conv_L_cache=3,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **changes,
    )
    del config["rms_norm_eps"]
    return config


def _liquid_shapes(config: dict[str, Any]) -> Shapes:
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = dim // heads
    kv = config["num_key_value_heads"] * head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], dim)}
    for index, kind in enumerate(config["layer_types"]):
        layer: Shapes = {"operator_norm.weight": (dim,), "ffn_norm.weight": (dim,)}
        if kind == "conv":
            layer["conv.in_proj.weight"] = (3 * dim, dim)
            layer["conv.conv.weight"] = (dim, 1, config["conv_L_cache"])
            layer["conv.out_proj.weight"] = (dim, dim)
        else:
            layer |= {"self_attn.q_proj.weight": (dim, dim), "self_attn.k_proj.weight": (kv, dim)}
            layer |= {"self_attn.v_proj.weight": (kv, dim), "self_attn.out_proj.weight": (dim, dim)}
            layer["self_attn.q_layernorm.weight"] = (head_dim,)
            layer["self_attn.k_layernorm.weight"] = (head_dim,)
        if index < config.get("num_dense_layers", len(config["layer_types"])):
            layer |= _liquid_network("feed_forward", dim, config["intermediate_size"])
        else:
            count = config["num_experts"]
            layer["feed_forward.gate.weight"] = (count, dim)
            layer["feed_forward.expert_bias"] = (count,)
            for expert in range(count):
                stem = f"feed_forward.experts.{expert}"
                layer |= _liquid_network(stem, dim, config["moe_intermediate_size"])
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | {"model.embedding_norm.weight": (dim,)}


def _liquid_network(stem: str, dim: int, ffn: int) -> Shapes:
    wide = {f"{stem}.{name}.weight": (ffn, dim) for name in ("w1", "w3")}
    return {**wide, f"{stem}.w2.weight": (dim, ffn)}


_LIQUID: Final = _liquid_config(block_auto_adjust_ff_dim=False)
_LIQUID_MOE: Final = _liquid_config(
    num_dense_layers=1,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=40,
    norm_topk_prob=True,
    use_expert_bias=True,
    routed_scaling_factor=1.0,
)
_LIQUID_KEYS: Final[dict[str, Value]] = {
    "attention.head_count_kv": np.array([0, 2, 0, 2], np.int32),
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    "shortconv.l_cache": 3,
}

RECURRENT_MODELS: Final = (
    TinyModel(
        name="lfm2",
        architecture="lfm2",
        hf_class="Lfm2",
        seed=201,
        config=_LIQUID,
        shapes=_liquid_shapes(_LIQUID),
        keys=_LIQUID_KEYS,
    ),
    TinyModel(
        name="lfm2moe",
        architecture="lfm2moe",
        hf_class="Lfm2Moe",
        seed=202,
        config=_LIQUID_MOE,
        shapes=_liquid_shapes(_LIQUID_MOE),
        keys=_LIQUID_KEYS
        | {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
        },
    ),
)


def recurrent_tensors(weights: Tensors) -> Tensors:
    """The weights as the converter of llama.cpp has them, still by Hugging Face's names."""
    found: Tensors = {}
    for name, weight in weights.items():
        if name.endswith("conv.conv.weight"):
            weight = np.squeeze(weight, 1)
        name = name.replace(".expert_bias", ".expert_bias.bias")
        if ".feed_forward.experts." in name:
            name = name.removeprefix("model.")
        found[name] = weight
    return found
