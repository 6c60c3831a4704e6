"""Weights of tiny models, and the files that hold them.

The weights are made with NumPy in the layout of the Transformers class, and written as GGUF the way
llama.cpp's converter does.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.data.models.text.expert_weights import (
    expert_shapes,
    fuse_attention,
    gpt_oss_tensors,
    latent_shapes,
    split_latent,
    stack_experts,
)
from tests.data.models.text.tiny_experts import LATENT_CLASSES
from tests.data.models.text.tiny_gemma4 import gemma4_tensors
from tests.data.models.text.tiny_model import Tensors, TinyModel
from tests.data.models.text.tiny_packed import is_matrix, packed, unpacked
from tests.data.models.text.tiny_recurrent import recurrent_tensors
from tests.support.files.gguf_writer import Stored, Value, write_gguf


def hf_weights(model: TinyModel) -> Tensors:
    """Random weights by Hugging Face's names, the same for the same seed."""
    rng = np.random.default_rng(model.seed)
    weights: Tensors = {}
    for name, shape in hf_shapes(model).items():
        noise = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith(("norm.weight", "norm_f.weight")):
            weights[name] = 0.2 * noise + (0 if model.stores_less_one(name) else 1)
        elif name.endswith(("norm_1.weight", "norm_2.weight", "scalar", "scale")):
            weights[name] = 1 + 0.2 * noise
        elif name.endswith("A_log"):
            weights[name] = 0.8 * noise - 2  # a state fades over tens of tokens
        elif name.endswith((".D", "bias", "sinks")) or "embed_tokens" in name:
            weights[name] = 0.5 * noise
        else:
            # Large enough for the limits of gpt-oss' experts, whose name this is.
            scale = 4.5 if name.endswith("experts.gate_up_proj") else 1.5
            weights[name] = scale * noise / np.float32(math.sqrt(shape[1]))
        if model.hf_class == "MuseGlimmer" and name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= 1e-3  # so small that the eps of post norms counts
        weights[name] = weights[name].astype(np.float32)
        if model.is_packed and is_matrix(name):
            weights |= packed(name, weights.pop(name).shape, np.random.default_rng(len(weights)))
    return weights


def hf_shapes(model: TinyModel) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights by Hugging Face's names."""
    if model.shapes:
        return model.shapes
    config = model.config
    dim, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q = config["num_attention_heads"] * model.head_dim
    kv = config["num_key_value_heads"] * model.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (dim,),
        "post_attention_layernorm.weight": (dim,),
        "self_attn.o_proj.weight": (dim, q),
        "mlp.down_proj.weight": (dim, ffn),
    }
    if model.hf_class in LATENT_CLASSES:
        layer |= latent_shapes(config)
    elif model.hf_class == "Phi3":
        layer["self_attn.qkv_proj.weight"] = (q + 2 * kv, dim)
    else:
        layer["self_attn.q_proj.weight"] = (q, dim)
        layer["self_attn.k_proj.weight"] = layer["self_attn.v_proj.weight"] = (kv, dim)
    if model.hf_class in ("Phi3", "Glm4"):
        layer["mlp.gate_up_proj.weight"] = (2 * ffn, dim)
    else:
        layer["mlp.gate_proj.weight"] = layer["mlp.up_proj.weight"] = (ffn, dim)
    if config.get("attention_bias") or model.hf_class in ("Qwen2", "Qwen2Moe", "GptOss"):
        layer["self_attn.q_proj.bias"] = (q,)
        layer["self_attn.k_proj.bias"] = layer["self_attn.v_proj.bias"] = (kv,)
    if (config.get("attention_bias") and model.hf_class == "Llama") or model.hf_class == "GptOss":
        layer["self_attn.o_proj.bias"] = (dim,)
    if model.hf_class in ("Olmoe", "MiniMaxM2", "Olmo2", "Olmo3"):
        layer["self_attn.q_norm.weight"], layer["self_attn.k_norm.weight"] = (q,), (kv,)
    if model.hf_class == "HunYuanMoEV1":
        of_head = (model.head_dim,)
        layer["self_attn.query_layernorm.weight"] = of_head
        layer["self_attn.key_layernorm.weight"] = of_head
    if model.hf_class in ("Qwen3", "Qwen3Moe", "Gemma3", "Dots1", "Glm4Moe"):
        layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = (model.head_dim,)
    if model.architecture == "olmo2":
        del layer["input_layernorm.weight"]
        layer["post_feedforward_layernorm.weight"] = (dim,)
    if model.hf_class == "MuseGlimmer":
        layer["self_attn.gate_proj.weight"] = (q, dim)
    if model.is_gemma or model.hf_class == "MuseGlimmer":
        layer["pre_feedforward_layernorm.weight"] = (dim,)
        layer["post_feedforward_layernorm.weight"] = (dim,)
    if model.hf_class == "Glm4":
        layer["post_self_attn_layernorm.weight"] = layer["post_mlp_layernorm.weight"] = (dim,)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, dim)}
    for index in range(config["num_hidden_layers"]):
        own, experts = dict(layer), expert_shapes(model, index)
        if experts:
            own = {name: shape for name, shape in layer.items() if "mlp." not in name} | experts
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in own.items()}
    shapes["model.norm.weight"] = (dim,)
    if not model.is_tied:
        shapes["lm_head.weight"] = (vocab, dim)
    return shapes


def gguf_tensors(model: TinyModel) -> dict[str, Any]:
    """The weights by GGUF's names and in its layout."""
    weights = hf_weights(model)
    if model.is_packed:
        weights = unpacked(weights)
    weights = gpt_oss_tensors(weights) if model.hf_class == "GptOss" else stack_experts(weights)
    if model.hf_class in LATENT_CLASSES:
        weights = split_latent(model, weights)
    if model.architecture == "gemma4":
        weights = gemma4_tensors(weights)
    elif model.shapes:
        weights = recurrent_tensors(model, weights)
    if model.architecture == "bailingmoe2":
        weights = fuse_attention(weights)
    if model.hf_class == "MuseGlimmer":
        weights |= _muse_norms(model)
    tensors = {
        gguf_name(model, name): weight
        if isinstance(weight, Stored)
        else gguf_layout(model, name, weight)
        for name, weight in weights.items()
    }
    return tensors | model.extra_tensors


def _muse_norms(model: TinyModel) -> Tensors:
    """The norms of queries and keys, of which the converter makes weights."""
    dim, gain = model.head_dim, model.config["qk_scale_factor"]
    return {
        f"blk.{index}.attn_{part}_norm.weight": np.full(dim, value, np.float32)
        for index in range(model.config["num_hidden_layers"])
        for part, value in (("q", gain), ("k", 1.0))
    }


def gguf_name(model: TinyModel, name: str) -> str:
    """GGUF's name of a weight, from the `gguf` package's own map."""
    if name.startswith("blk."):
        return name
    is_muse = model.architecture == "muse-glimmer"  # which that map lacks
    if is_muse and "self_attn.gate_proj" in name:
        return f"blk.{name.split('.')[2]}.attn_gate.weight"
    names = _name_map(
        "gemma3" if is_muse else model.architecture, model.config["num_hidden_layers"]
    )
    # As the converter does.
    name = name.replace("correction_bias", "correction.bias").replace("sinks", "sinks.weight")
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


@cache
def _name_map(architecture: str, layers: int) -> gguf.TensorNameMap:
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(arch, layers)


def gguf_layout(
    model: TinyModel, name: str, weight: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """The rows of a weight of that name as GGUF has them."""
    is_permuted = model.architecture in (
        *("llama", "granitehybrid", "mistral3", "granite", "smollm3", "muse-glimmer"),
    )
    if is_permuted and "q_proj" in name:
        weight = _interleave_halves(weight, model.config["num_attention_heads"])
    elif is_permuted and "k_proj" in name:
        weight = _interleave_halves(weight, model.config["num_key_value_heads"])
    elif model.stores_less_one(name):
        weight = weight + 1
    if weight.ndim == 2 and len(weight) == 1 and "norm" not in name:
        weight = weight[0]
    return np.ascontiguousarray(weight, np.float32)


def _interleave_halves(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head from (first half, second half) to pairs: GGUF's Llama rotates pairs."""
    per_head = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return per_head.swapaxes(1, 2).reshape(weight.shape)


def gguf_metadata(model: TinyModel) -> dict[str, Value]:
    """What the converter writes for this model."""
    config = model.config
    keys: dict[str, Value] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": model.norm_eps,
        "vocab_size": config["vocab_size"],
        **model.keys,
    }
    prefixed = {f"{model.architecture}.{key}": value for key, value in keys.items()}
    return {"general.architecture": model.architecture, "general.name": model.name, **prefixed}


def write_model(model: TinyModel, folder: Path) -> Path:
    """Writes the model as a float32 GGUF file and returns its path."""
    path = folder / f"{model.name}.gguf"
    return write_gguf(path, gguf_metadata(model), gguf_tensors(model))
