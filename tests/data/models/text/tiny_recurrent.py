"""Tiny models with states: recipes, and how the converter of llama.cpp changes their weights.

The seeds of those with experts are such that no token is near the border between two experts, and
that roundings of weights to float32 move no log-probability by 1e-5 of the spread of the logits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.data.models.text.tiny_mamba import MAMBA_CLASSES, MAMBA_MODELS, mamba_tensors
from tests.data.models.text.tiny_model import Shapes, Tensors, TinyModel, plain_rope, tiny_config
from tests.support.files.gguf_writer import Value

LONG_PROMPT: Final = tuple(7 * index % 89 for index in range(700))
LENGTHS: Final = (1, 63, 64, 65, 700)
"""Of prompts: beside and at the borders of chunks of 64 tokens, and beyond several."""
FAR_PROMPT: Final = tuple((7 * index + index // 89) % 89 for index in range(5000))
"""As long as what an agent begins with: roundings of a state have many steps to grow."""


def _liquid_config(**changes: Any) -> dict[str, Any]:
    config = tiny_config(
        num_hidden_layers=4,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        conv_L_cache=3,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        norm_eps=1e-5,
        rope_parameters=plain_rope(10000.0),
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

_HEADS: Final = {"num_attention_heads": 4, "head_dim": 16}
_KEY_HEADS, _VALUE_HEADS = 2, 4
_DELTA_DIM: Final = 16
_EXPERTS: Final = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "norm_topk_prob": True,
}
_EXPERT_KEYS: Final[dict[str, Value]] = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_feed_forward_length": 40,
    "expert_shared_feed_forward_length": 56,
}


def _delta_config(*kinds: str, **changes: Any) -> dict[str, Any]:
    return tiny_config(
        num_hidden_layers=len(kinds),
        layer_types=[f"{kind}_attention" for kind in kinds],
        linear_num_key_heads=_KEY_HEADS,
        linear_num_value_heads=_VALUE_HEADS,
        linear_key_head_dim=_DELTA_DIM,
        linear_value_head_dim=_DELTA_DIM,
        max_position_embeddings=1024,
        rms_norm_eps=1e-6,
        rope_parameters=plain_rope(10000.0, partial_rotary_factor=0.25),
        **_HEADS,
        **changes,
    )


def _axes(pairs: int) -> list[int]:
    """Pairs of a head that belong to each axis of positions."""
    return [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3] if pairs > 2 else [1, 1, 0]


def _with_axes(config: dict[str, Any], pairs: int) -> dict[str, Any]:
    rope = config["rope_parameters"] | {"mrope_section": _axes(pairs)}
    return config | {"rope_parameters": rope}


def _axis_keys(pairs: int) -> dict[str, Value]:
    return {"rope.dimension_sections": np.array([*_axes(pairs), 0], np.int32)}


def _delta_keys(changes: dict[str, Value]) -> dict[str, Value]:
    return {
        "attention.key_length": 16,
        "attention.value_length": 16,
        "rope.dimension_count": 4,
        "rope.freq_base": 10000.0,
        "ssm.conv_kernel": 4,
        "ssm.state_size": _DELTA_DIM,
        "ssm.group_count": _KEY_HEADS,
        "ssm.time_step_rank": _VALUE_HEADS,
        "ssm.inner_size": _VALUE_HEADS * _DELTA_DIM,
        **changes,
    }


def _heads_of(config: dict[str, Any]) -> tuple[int, int, int]:
    """The heads of keys and of values of Gated DeltaNet, and the elements of each."""
    kinds = ("num_key_heads", "num_value_heads", "key_head_dim")
    key_heads, value_heads, dim = (config[f"linear_{kind}"] for kind in kinds)
    return key_heads, value_heads, dim


def delta_shapes(config: dict[str, Any], *, fused: bool) -> Shapes:
    """The shapes of a model with Gated DeltaNet."""
    dim, heads, head_dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    kv = config["num_key_value_heads"] * head_dim
    key_heads, value_heads, delta_dim = _heads_of(config)
    keys, values = key_heads * delta_dim, value_heads * delta_dim
    mixed = 2 * keys + values
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], dim)}
    for index, kind in enumerate(config["layer_types"]):
        layer: Shapes = {
            "input_layernorm.weight": (dim,),
            "post_attention_layernorm.weight": (dim,),
        }
        if kind == "full_attention":
            layer["self_attn.q_proj.weight"] = (2 * heads * head_dim, dim)
            layer |= {"self_attn.k_proj.weight": (kv, dim), "self_attn.v_proj.weight": (kv, dim)}
            layer["self_attn.o_proj.weight"] = (dim, heads * head_dim)
            layer |= {f"self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
        else:
            stem = "linear_attn"
            if fused:
                layer[f"{stem}.in_proj_qkvz.weight"] = (mixed + values, dim)
                layer[f"{stem}.in_proj_ba.weight"] = (2 * value_heads, dim)
            else:
                layer[f"{stem}.in_proj_qkv.weight"] = (mixed, dim)
                layer[f"{stem}.in_proj_z.weight"] = (values, dim)
                layer |= {f"{stem}.in_proj_{name}.weight": (value_heads, dim) for name in "ab"}
            layer |= {f"{stem}.A_log": (value_heads,), f"{stem}.dt_bias": (value_heads,)}
            layer[f"{stem}.conv1d.weight"] = (mixed, 1, 4)
            layer[f"{stem}.norm.weight"] = (delta_dim,)
            layer[f"{stem}.out_proj.weight"] = (dim, values)
        if "num_experts" in config:
            layer |= _qwen_experts(config)
        else:
            layer |= _qwen_network("mlp", dim, config["intermediate_size"])
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (dim,)
    return shapes | {"lm_head.weight": (config["vocab_size"], dim)}


def _qwen_network(stem: str, dim: int, ffn: int) -> Shapes:
    wide = {f"{stem}.{name}_proj.weight": (ffn, dim) for name in ("gate", "up")}
    return {**wide, f"{stem}.down_proj.weight": (dim, ffn)}


def _qwen_experts(config: dict[str, Any]) -> Shapes:
    dim, count, ffn = (
        config[key] for key in ("hidden_size", "num_experts", "moe_intermediate_size")
    )
    shapes: Shapes = {"mlp.gate.weight": (count, dim), "mlp.shared_expert_gate.weight": (1, dim)}
    for expert in range(count):
        shapes |= _qwen_network(f"mlp.experts.{expert}", dim, ffn)
    shared = config["shared_expert_intermediate_size"]
    return shapes | _qwen_network("mlp.shared_expert", dim, shared)


_QWEN35: Final = _with_axes(_delta_config("linear", "linear", "linear", "full"), 2)
_QWEN35_MOE: Final = _with_axes(_delta_config("linear", "full", "linear", **_EXPERTS), 2)
_QWEN_NEXT: Final = _delta_config(
    "linear", "linear", "full", decoder_sparse_step=1, mlp_only_layers=[], **_EXPERTS
)

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
    TinyModel(
        name="qwen35",
        architecture="qwen35",
        hf_class="Qwen3_5",
        seed=203,
        config=_QWEN35,
        shapes=delta_shapes(_QWEN35, fused=False),
        keys=_delta_keys(_axis_keys(2)),
    ),
    TinyModel(
        name="qwen35moe",
        architecture="qwen35moe",
        hf_class="Qwen3_5Moe",
        seed=204,
        config=_QWEN35_MOE,
        shapes=delta_shapes(_QWEN35_MOE, fused=False),
        keys=_delta_keys(
            _EXPERT_KEYS | _axis_keys(2) | {"full_attention_interval": 2},
        ),
    ),
    TinyModel(
        name="qwen3next",
        architecture="qwen3next",
        hf_class="Qwen3Next",
        seed=304,
        config=_QWEN_NEXT,
        shapes=delta_shapes(_QWEN_NEXT, fused=True),
        keys=_delta_keys(
            _EXPERT_KEYS | {"attention.recurrent_layers": np.array([True, True, False])}
        ),
    ),
    *MAMBA_MODELS,
)


def larger_liquid(model: TinyModel, **changes: int) -> TinyModel:
    """One of LFM2 in sizes that a GPU has kernels for, with changes of its configuration."""
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = model.config | sizes | {"intermediate_size": 96, "moe_intermediate_size": 64}
    config |= changes
    kv_heads = np.array([0, 1, 0, 1], np.int32) * config["num_key_value_heads"]
    keys = model.keys | {"attention.head_count_kv": kv_heads}
    if "num_experts" in config:
        keys |= {"expert_feed_forward_length": 64}
    return replace(model, config=config, keys=keys, shapes=_liquid_shapes(config))


def larger_delta(
    model: TinyModel,
    delta_dim: int = 32,
    head_dim: int = 64,
    delta_heads: tuple[int, int] = (_KEY_HEADS, _VALUE_HEADS),
    **changes: int,
) -> TinyModel:
    """One with Gated DeltaNet in sizes that a GPU has kernels for.

    Args:
        model: In other sizes.
        delta_dim: Of a head of Gated DeltaNet.
        head_dim: Of one of attention.
        delta_heads: Heads of keys and of values.
        changes: Of the configuration; a shared expert has the size of a network that is changed.
    """
    key_heads, value_heads = delta_heads
    config = model.config | {
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "intermediate_size": 96,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": delta_dim,
        "linear_value_head_dim": delta_dim,
        **changes,
    }
    keys = model.keys | {
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim // 4,
        "ssm.state_size": delta_dim,
        "ssm.group_count": key_heads,
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": value_heads * delta_dim,
    }
    if "rope.dimension_sections" in keys:
        config, keys = _with_axes(config, head_dim // 8), keys | _axis_keys(head_dim // 8)
    if "num_experts" in config:
        shared = 64 if model.architecture == "qwen35moe" else 96  # as the other experts, or not
        shared = changes.get("intermediate_size", shared)
        shared = changes.get("shared_expert_intermediate_size", shared)
        config |= {"moe_intermediate_size": 64, "shared_expert_intermediate_size": shared}
        keys |= {"expert_feed_forward_length": 64, "expert_shared_feed_forward_length": shared}
    shapes = delta_shapes(config, fused=model.architecture == "qwen3next")
    return replace(model, config=config, keys=keys, shapes=shapes)


def recurrent_tensors(model: TinyModel, weights: Tensors) -> Tensors:
    """The weights as the converter of llama.cpp has them, still by Hugging Face's names."""
    if model.hf_class in MAMBA_CLASSES:
        return mamba_tensors(model, weights)
    found: Tensors = {}
    for name, weight in weights.items():
        if name.endswith(("conv.conv.weight", "conv1d.weight")):
            weight = np.squeeze(weight, 1)
        elif name.endswith("A_log"):
            weight = -np.exp(weight)
        if model.architecture in ("qwen35", "qwen35moe") and ".linear_attn." in name:
            weight = _tiled(name, weight, model.config)
        name = name.replace(".expert_bias", ".expert_bias.bias").replace(
            ".dt_bias", ".dt_proj.bias"
        )
        if ".feed_forward.experts." in name:
            name = name.removeprefix("model.")
        if name.endswith("in_proj_qkvz.weight"):
            mixed, gate = _apart(weight, model.config)
            found[name.replace("qkvz", "qkv")], found[name.replace("qkvz", "z")] = mixed, gate
        else:
            found[name] = weight
    return found


def _tiled(name: str, weight: npt.NDArray[Any], config: dict[str, Any]) -> npt.NDArray[Any]:
    """A weight with the value heads of the first key head, the second and so on in turn."""
    key_heads, value_heads, delta_dim = _heads_of(config)
    keys = key_heads * delta_dim

    def tiled(values: npt.NDArray[Any], axis: int = 0) -> npt.NDArray[Any]:
        first = np.moveaxis(values, axis, 0)
        heads = first.reshape(key_heads, value_heads // key_heads, -1, *first.shape[1:])
        return np.moveaxis(heads.swapaxes(0, 1).reshape(first.shape), 0, axis)

    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return np.concatenate([weight[: 2 * keys], tiled(weight[2 * keys :])])
    if name.endswith("out_proj.weight"):
        return tiled(weight, 1)
    return weight if name.endswith("norm.weight") else tiled(weight)


def _apart(
    weight: npt.NDArray[Any], config: dict[str, Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Queries, keys and values of all heads, and their gates, of rows in the order of key heads."""
    key_heads, value_heads, delta_dim = _heads_of(config)
    each = value_heads // key_heads * delta_dim
    heads = weight.reshape(key_heads, -1, weight.shape[1])
    places = np.cumsum([delta_dim, delta_dim, each])
    q, k, v, z = (part.reshape(-1, weight.shape[1]) for part in np.split(heads, places, axis=1))
    return np.concatenate([q, k, v]), z
