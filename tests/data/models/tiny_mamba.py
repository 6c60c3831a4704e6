"""Tiny models with Mamba-2: recipes, and how the converter of llama.cpp changes their weights.

The seeds of those with experts are such that no token is near the border between two experts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.data.models.tiny_model import Shapes, Tensors, TinyModel, tiny_config
from tests.support.gguf_writer import Value

_DIM, _HEADS, _HEAD_DIM, _GROUPS, _STATE, _WIDTH = 48, 6, 16, 2, 16, 4
_INNER: Final = _HEADS * _HEAD_DIM  # llama.cpp insists on twice the hidden size
_MIXED: Final = _INNER + 2 * _GROUPS * _STATE
_KEYS: Final[dict[str, Value]] = {
    "ssm.conv_kernel": _WIDTH,
    "ssm.state_size": _STATE,
    "ssm.group_count": _GROUPS,
    "ssm.time_step_rank": _HEADS,
    "ssm.inner_size": _INNER,
}


def _mamba_shapes(dim: int) -> Shapes:
    return {
        "in_proj.weight": (_INNER + _MIXED + _HEADS, dim),
        "conv1d.weight": (_MIXED, 1, _WIDTH),
        "conv1d.bias": (_MIXED,),
        "A_log": (_HEADS,),
        "D": (_HEADS,),
        "dt_bias": (_HEADS,),
        "norm.weight": (_INNER,),
        "out_proj.weight": (dim, _INNER),
    }


def _attention_shapes(config: dict[str, Any]) -> Shapes:
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", dim // heads)
    kv = config["num_key_value_heads"] * head_dim
    return {
        "q_proj.weight": (heads * head_dim, dim),
        "k_proj.weight": (kv, dim),
        "v_proj.weight": (kv, dim),
        "o_proj.weight": (dim, heads * head_dim),
    }


def _granite_config(*kinds: str, **changes: Any) -> dict[str, Any]:
    return tiny_config(
        num_hidden_layers=len(kinds),
        layer_types=[f"{kind}_attention" for kind in kinds],
        max_position_embeddings=1024,
        mamba_n_heads=_HEADS,
        mamba_d_head=_HEAD_DIM,
        mamba_n_groups=_GROUPS,
        mamba_d_state=_STATE,
        mamba_d_conv=_WIDTH,
        mamba_expand=2,
        mamba_chunk_size=32,
        embedding_multiplier=6.0,
        residual_multiplier=0.4,
        attention_multiplier=0.25,
        logits_scaling=1.5,
        **changes,
    )


def _granite_shapes(config: dict[str, Any]) -> Shapes:
    dim, shared = config["hidden_size"], config["shared_intermediate_size"]
    experts, size = config["num_local_experts"], config["intermediate_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], dim)}
    for index, kind in enumerate(config["layer_types"]):
        layer: Shapes = {
            "input_layernorm.weight": (dim,),
            "post_attention_layernorm.weight": (dim,),
            "shared_mlp.input_linear.weight": (2 * shared, dim),
            "shared_mlp.output_linear.weight": (dim, shared),
        }
        if kind == "full_attention":
            own = _attention_shapes(config)
            layer |= {f"self_attn.{name}": shape for name, shape in own.items()}
        else:
            layer |= {f"mamba.{name}": shape for name, shape in _mamba_shapes(dim).items()}
        if experts:
            layer["block_sparse_moe.router.layer.weight"] = (experts, dim)
            layer["block_sparse_moe.input_linear.weight"] = (experts, 2 * size, dim)
            layer["block_sparse_moe.output_linear.weight"] = (experts, dim, size)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (dim,)
    if config["tie_word_embeddings"]:
        return shapes
    return shapes | {"lm_head.weight": (config["vocab_size"], dim)}


def _granite_keys(config: dict[str, Any]) -> dict[str, Value]:
    kinds = config["layer_types"]
    kv = [config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds]
    return _KEYS | {
        "attention.head_count_kv": np.array(kv, np.int32),
        "attention.scale": 0.25,
        "embedding_scale": 6.0,
        "residual_scale": 0.4,
        "logit_scale": 1.5,
        "rope.dimension_count": 8,
        "rope.scaling.finetuned": config.get("position_embedding_type") == "rope",
    }


def _nemotron_config(*kinds: str, **changes: Any) -> dict[str, Any]:
    config = tiny_config(
        layers_block_type=[*kinds],
        num_hidden_layers=len(kinds),
        head_dim=12,
        max_position_embeddings=1024,
        layer_norm_epsilon=1e-5,
        mamba_num_heads=_HEADS,
        mamba_head_dim=_HEAD_DIM,
        n_groups=_GROUPS,
        ssm_state_size=_STATE,
        conv_kernel=_WIDTH,
        expand=2,
        chunk_size=32,
        **changes,
    )
    del config["rms_norm_eps"]
    return config


def _nemotron_shapes(config: dict[str, Any]) -> Shapes:
    dim = config["hidden_size"]
    shapes: Shapes = {"backbone.embeddings.weight": (config["vocab_size"], dim)}
    for index, kind in enumerate(config["layers_block_type"]):
        stem = f"backbone.layers.{index}"
        shapes[f"{stem}.norm.weight"] = (dim,)
        own: Shapes = {
            "linear_attention": lambda: _mamba_shapes(dim),
            "full_attention": lambda: _attention_shapes(config),
            "mlp": lambda: _ungated_shapes(dim, config["intermediate_size"]),
            "moe": lambda: _nemotron_experts(config),
        }[kind]()
        shapes |= {f"{stem}.mixer.{name}": shape for name, shape in own.items()}
    shapes["backbone.norm_f.weight"] = (dim,)
    return shapes | {"lm_head.weight": (config["vocab_size"], dim)}


def _ungated_shapes(dim: int, size: int) -> Shapes:
    return {"up_proj.weight": (size, dim), "down_proj.weight": (dim, size)}


def _nemotron_experts(config: dict[str, Any]) -> Shapes:
    dim, count = config["hidden_size"], config["n_routed_experts"]
    shapes: Shapes = {"gate.weight": (count, dim), "gate.e_score_correction_bias": (count,)}
    networks = {f"experts.{n}": config["moe_intermediate_size"] for n in range(count)}
    networks["shared_experts"] = config["moe_shared_expert_intermediate_size"]
    for stem, size in networks.items():
        shapes |= {f"{stem}.{name}": shape for name, shape in _ungated_shapes(dim, size).items()}
    return shapes


def _nemotron_keys(config: dict[str, Any]) -> dict[str, Value]:
    kinds, kv = config["layers_block_type"], config["num_key_value_heads"]
    size = config.get("moe_intermediate_size", config["intermediate_size"])
    heads = [kv if kind == "full_attention" else 0 for kind in kinds]
    sizes = [size if kind in ("mlp", "moe") else 0 for kind in kinds]
    return _KEYS | {
        "attention.head_count_kv": np.array(heads, np.int32),
        "attention.key_length": 12,
        "attention.value_length": 12,
        "attention.layer_norm_epsilon": 1e-5,
        "feed_forward_length": np.array(sizes, np.int32),
    }


_GRANITE: Final = _granite_config(
    *("linear", "full", "linear"),
    intermediate_size=40,
    shared_intermediate_size=56,
    num_local_experts=8,
    num_experts_per_tok=3,
    tie_word_embeddings=True,
)
_GRANITE_DENSE: Final = _granite_config(
    *("linear", "linear", "full"),
    intermediate_size=72,
    shared_intermediate_size=72,
    num_local_experts=0,
    num_experts_per_tok=0,
    position_embedding_type="rope",
    rope_parameters={"rope_type": "default", "rope_theta": 300.0},
)
_NEMOTRON: Final = _nemotron_config(
    "linear_attention", "mlp", "linear_attention", "full_attention", "mlp"
)
_NEMOTRON_MOE: Final = _nemotron_config(
    *("linear_attention", "moe", "full_attention", "moe", "linear_attention"),
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=1,
    moe_intermediate_size=40,
    moe_shared_expert_intermediate_size=56,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
)

MAMBA_MODELS: Final = (
    TinyModel(
        name="granitehybrid",
        architecture="granitehybrid",
        hf_class="GraniteMoeHybrid",
        seed=211,
        config=_GRANITE,
        shapes=_granite_shapes(_GRANITE),
        keys=_granite_keys(_GRANITE)
        | {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_shared_feed_forward_length": 56,
        },
    ),
    TinyModel(
        name="granitehybrid-dense",
        architecture="granitehybrid",
        hf_class="GraniteMoeHybrid",
        seed=212,
        config=_GRANITE_DENSE,
        shapes=_granite_shapes(_GRANITE_DENSE),
        keys=_granite_keys(_GRANITE_DENSE) | {"rope.freq_base": 300.0},
    ),
    TinyModel(
        name="nemotron_h",
        architecture="nemotron_h",
        hf_class="NemotronH",
        seed=213,
        config=_NEMOTRON,
        shapes=_nemotron_shapes(_NEMOTRON),
        keys=_nemotron_keys(_NEMOTRON),
    ),
    TinyModel(
        name="nemotron_h_moe",
        architecture="nemotron_h_moe",
        hf_class="NemotronH",
        seed=214,
        config=_NEMOTRON_MOE,
        shapes=_nemotron_shapes(_NEMOTRON_MOE),
        keys=_nemotron_keys(_NEMOTRON_MOE)
        | {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_shared_count": 1,
            "expert_feed_forward_length": 40,
            "expert_shared_feed_forward_length": 56,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "expert_group_count": 1,
        },
    ),
)


def mamba_tensors(model: TinyModel, weights: Tensors) -> Tensors:
    """The weights as the converter of llama.cpp has them, still by Hugging Face's names."""
    found: Tensors = {}
    shared = "mlp.shared_expert" if model.config.get("num_local_experts") else "mlp"
    for name, weight in weights.items():
        stem = name.rpartition(".mixer.")[0] or name.rpartition(".mamba.")[0]
        if name.endswith("conv1d.weight"):
            weight = np.squeeze(weight, 1)
        elif name.endswith("A_log"):
            weight = -np.exp(weight)[:, None]
        elif name.endswith(".D"):
            weight = weight[:, None]
        elif stem and name.endswith(".norm.weight"):
            weight = weight.reshape(_GROUPS, -1)
        name = name.replace(".dt_bias", ".dt_proj.bias")
        name = name.replace("mixer.experts.", "mlp.experts.")
        if "mlp.experts." in name:
            name = name.replace("backbone", "model")
        if name.endswith("_linear.weight") and "router" not in name:
            layer, _, part = name.rpartition("shared_mlp." if "shared_mlp" in name else "block_")
            ours = f"{layer}{shared}" if "shared_mlp" in name else f"{layer}mlp.experts"
            if part.endswith("output_linear.weight"):
                found[f"{ours}.down_proj.weight"] = weight
                continue
            gate, up = np.split(weight, 2, axis=-2)
            found[f"{ours}.gate_proj.weight"], found[f"{ours}.up_proj.weight"] = gate, up
        else:
            found[name] = weight
    return found
