"""Weights of experts and of latent attention, in the layouts of folders and of GGUF files."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.data.models.text.tiny_model import Tensors, TinyModel

_ONE_EXPERT: Final = re.compile(r"(.*\.experts\.)(\d+)\.(.*)")
_OF_MIXTRAL: Final = ("w1", "w3", "w2")
_OF_OTHERS: Final = ("gate_proj", "up_proj", "down_proj")
"""The names of gate, up and down."""
_COUNTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_BIASES: Final = {
    "Ernie4_5_Moe": "mlp.moe_statics.e_score_correction_bias",
    "Dots1": "mlp.gate.e_score_correction_bias",
    "Glm4Moe": "mlp.gate.e_score_correction_bias",
    "DeepseekV3": "mlp.gate.e_score_correction_bias",
    "Glm4MoeLite": "mlp.gate.e_score_correction_bias",
    "MiniMaxM2": "block_sparse_moe.e_score_correction_bias",
}
"""The bias of a class that chooses experts."""


def expert_shapes(model: TinyModel, layer: int) -> dict[str, tuple[int, ...]]:
    """The weights of a layer's experts by Hugging Face's names; none if it has no experts."""
    config, dim = model.config, model.config["hidden_size"]
    count = next((config[key] for key in _COUNTS if key in config), 0)
    start = config.get("first_k_dense_replace", config.get("moe_layer_start_index", 0))
    if model.hf_class == "Glm4MoeLite":  # where the configuration says nothing
        start = 1
    if not count or layer < start or (layer + 1) % config.get("moe_layer_interval", 1):
        return {}
    if model.hf_class == "GptOss":
        return _gpt_oss_shapes(count, dim, config["intermediate_size"])
    of_mixtral = model.hf_class in ("Mixtral", "MiniMaxM2")
    block = "block_sparse_moe" if of_mixtral else "mlp"
    ffn = config.get("moe_intermediate_size", config["intermediate_size"])
    ffn = ffn[layer] if isinstance(ffn, list) else ffn
    is_hunyuan = model.hf_class == "HunYuanMoEV1"
    router = f"{block}.gate.wg.weight" if is_hunyuan else f"{block}.gate.weight"
    shapes: dict[str, tuple[int, ...]] = {router: (count, dim)}
    names = _OF_MIXTRAL if of_mixtral else _OF_OTHERS
    for expert in range(count):
        shapes |= _network(f"{block}.experts.{expert}", names, dim, ffn)
    if model.hf_class in _BIASES:
        bias, shape = _BIASES[model.hf_class], (count,)
        shapes[bias] = (1, *shape) if "statics" in bias else shape
    if model.hf_class == "Qwen2Moe":
        size = config["shared_expert_intermediate_size"]
        shapes |= _network("mlp.shared_expert", names, dim, size)
        shapes["mlp.shared_expert_gate.weight"] = (1, dim)
    if is_hunyuan:
        shapes |= _network("mlp.shared_mlp", names, dim, ffn)
    shared = config.get("n_shared_experts", config.get("moe_num_shared_experts", 0))
    if shared:
        shapes |= _network("mlp.shared_experts", names, dim, shared * ffn)
    return shapes


def latent_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The weights of multi-head latent attention by Hugging Face's names."""
    dim, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    rotated, plain = config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    value, query_rank = config["v_head_dim"], config["q_lora_rank"]
    shapes: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa.weight": (rank + rotated, dim),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (plain + value), rank),
        "o_proj.weight": (dim, heads * value),
    }
    queries = heads * (plain + rotated)
    if query_rank is None:
        shapes["q_proj.weight"] = (queries, dim)
    else:
        shapes["q_a_proj.weight"] = (query_rank, dim)
        shapes["q_a_layernorm.weight"] = (query_rank,)
        shapes["q_b_proj.weight"] = (queries, query_rank)
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def split_latent(model: TinyModel, weights: Tensors) -> Tensors:
    """The weights with the matrices of keys and values apart, as the converter makes them."""
    plain, heads = model.config["qk_nope_head_dim"], model.config["num_attention_heads"]
    found: Tensors = {}
    for name, weight in weights.items():
        if "kv_b_proj" in name:
            of_heads = weight.reshape(heads, -1, weight.shape[1])
            found[name.replace("kv_b", "k_b")] = of_heads[:, :plain].swapaxes(1, 2)
            found[name.replace("kv_b", "v_b")] = of_heads[:, plain:]
        else:
            found[name] = weight
    return found


def fuse_latent(tensors: Tensors) -> Tensors:
    """GGUF's tensors with the matrices of keys and values as one, as older converters wrote it."""
    found: Tensors = {}
    for name, keys in tensors.items():
        if name.endswith("attn_k_b.weight"):
            values = tensors[name.replace("k_b", "v_b")]
            both = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
            found[name.replace("k_b", "kv_b")] = both.reshape(-1, both.shape[-1])
        elif not name.endswith("attn_v_b.weight"):
            found[name] = keys
    return found


def _network(prefix: str, names: tuple[str, ...], dim: int, ffn: int) -> dict[str, tuple[int, ...]]:
    gate, up, down = (f"{prefix}.{name}.weight" for name in names)
    return {gate: (ffn, dim), up: (ffn, dim), down: (dim, ffn)}


def _gpt_oss_shapes(count: int, dim: int, ffn: int) -> dict[str, tuple[int, ...]]:
    """Its matrices are [experts, in_features, out_features], with gate and up in turns."""
    return {
        "self_attn.sinks": (6,),
        "mlp.router.weight": (count, dim),
        "mlp.router.bias": (count,),
        "mlp.experts.gate_up_proj": (count, dim, 2 * ffn),
        "mlp.experts.gate_up_proj_bias": (count, 2 * ffn),
        "mlp.experts.down_proj": (count, ffn, dim),
        "mlp.experts.down_proj_bias": (count, dim),
    }


def gpt_oss_tensors(weights: Tensors) -> Tensors:
    """The weights in the layout that the converter gives to other models, under their names."""
    found: Tensors = {}
    for name, weight in weights.items():
        if "mlp.experts." not in name or name.endswith(".weight"):
            found[name] = weight
            continue
        stem = name.removesuffix("_bias")
        kind = "weight" if stem == name else "bias"
        rows = weight.swapaxes(-1, -2) if stem == name else weight
        if "gate_up" in name:
            for place, part in enumerate(("gate_proj", "up_proj")):
                own = stem.replace("gate_up_proj", part)
                found[f"{own}.{kind}"] = rows[:, place::2]
        else:
            found[f"{stem}.{kind}"] = rows
    return found


def stack_experts(weights: Tensors) -> Tensors:
    """The weights with those of each expert as one, as the converter of llama.cpp makes it."""
    stacked: Tensors = {}
    experts: dict[str, list[npt.NDArray[np.float32]]] = {}
    for name, weight in weights.items():
        if match := _ONE_EXPERT.fullmatch(name):
            experts.setdefault(match[1] + match[3], []).append(weight)
        else:
            stacked[name] = weight
    return stacked | {name: np.stack(parts) for name, parts in experts.items()}


def fuse_attention(weights: Tensors) -> Tensors:
    """The weights with queries, keys and values as one, as Ling has them."""
    fused: Tensors = {}
    for name, weight in weights.items():
        stem, _, part = name.rpartition("self_attn.")
        if part == "q_proj.weight":
            keys, values = (weights[f"{stem}self_attn.{kind}_proj.weight"] for kind in "kv")
            fused[f"{stem}attention.query_key_value.weight"] = np.concatenate(
                (weight, keys, values)
            )
        elif part not in ("k_proj.weight", "v_proj.weight"):
            fused[name] = weight
    return fused


def fuse_experts(weights: Tensors) -> Tensors:
    """The weights with those of all experts as one, gate and up too, as Transformers has them."""
    fused: Tensors = {}
    stacked = stack_experts(weights)
    for name, weight in stacked.items():
        stem, _, part = name.rpartition("mlp.experts.")
        if part == "gate_proj.weight":
            up = stacked[f"{stem}mlp.experts.up_proj.weight"]
            fused[f"{stem}mlp.experts.gate_up_proj"] = np.concatenate([weight, up], axis=1)
        elif part == "down_proj.weight":
            fused[f"{stem}mlp.experts.down_proj"] = weight
        elif part != "up_proj.weight":
            fused[name] = weight
    return fused
