"""Tiny random models of every architecture, in Hugging Face's layout and as GGUF files.

A model is a recipe: the Transformers class and configuration, and a seed. The weights are made
with NumPy in the layout of that class. `make_goldens.py` loads them into Transformers and records
logits; the tests write them as GGUF, the way llama.cpp's converter does, and compare.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from tests.data.models.tiny_experts import (
    BAILING,
    EXPERT_MODELS,
    GPT_OSS_MODELS,
    LATENT_CLASSES,
    LATENT_MODELS,
    expert_shapes,
    fuse_attention,
    gpt_oss_tensors,
    latent_shapes,
    split_latent,
    stack_experts,
)
from tests.data.models.tiny_gemma4 import GEMMA4_MODELS, gemma4_tensors
from tests.data.models.tiny_model import Tensors, TinyModel, tiny_config
from tests.data.models.tiny_packed import is_matrix, packed, unpacked
from tests.data.models.tiny_recurrent import (
    RECURRENT_MODELS,
    recurrent_tensors,
)
from tests.support.gguf_writer import Stored, Value, write_gguf

__all__ = ["TinyModel"]

PROMPT: Final = tuple(7 * index % 89 for index in range(40))
GOLDEN_ROWS: Final = (0, 5, 12, 25, 39)


def _llama3_factors(rope: dict[str, Any], dim: int) -> npt.NDArray[np.float32]:
    """Divisors of the frequencies, as the converter of llama.cpp computes them for Llama 3."""
    factors = []
    for pair in range(dim // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * pair / dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(rope["factor"])
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


_LLAMA3_ROPE: Final = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG_FACTORS: Final = (1.0, 1.3, 2.5, 4.0)
_SHORT_FACTORS: Final = (1.0, 1.05, 1.1, 1.4)


def _phi3_longrope(name: str, original: int, seed: int) -> TinyModel:
    return TinyModel(
        name=name,
        architecture="phi3",
        hf_class="Phi3",
        seed=seed,
        config=tiny_config(
            original_max_position_embeddings=original,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 100.0,
                "long_factor": list(_LONG_FACTORS),
                "short_factor": list(_SHORT_FACTORS),
                "original_max_position_embeddings": original,
            },
        ),
        keys={
            "rope.freq_base": 100.0,
            "rope.dimension_count": 8,
            "rope.scaling.original_context_length": original,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(128 / original) / math.log(original))
            if original < 128
            else 1.0,
            "attention.sliding_window": 0,
        },
        extra_tensors={
            "rope_factors_long.weight": np.array(_LONG_FACTORS, np.float32),
            "rope_factors_short.weight": np.array(_SHORT_FACTORS, np.float32),
        },
    )


DENSE_MODELS: Final = (
    TinyModel(
        name="llama",
        architecture="llama",
        hf_class="Llama",
        seed=1,
        config=tiny_config(rope_parameters={"rope_type": "default", "rope_theta": 300.0}),
        keys={"rope.freq_base": 300.0, "rope.dimension_count": 8},
    ),
    TinyModel(
        name="llama-bias-tied",
        architecture="llama",
        hf_class="Llama",
        seed=2,
        config=tiny_config(attention_bias=True, tie_word_embeddings=True, head_dim=12),
        keys={
            "attention.key_length": 12,
            "attention.value_length": 12,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": 12,
        },
    ),
    TinyModel(
        name="llama3-rope",
        architecture="llama",
        hf_class="Llama",
        seed=3,
        config=tiny_config(head_dim=16, rope_parameters=_LLAMA3_ROPE),
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.freq_base": 500.0,
            "rope.dimension_count": 16,
        },
        extra_tensors={"rope_freqs.weight": _llama3_factors(_LLAMA3_ROPE, 16)},
    ),
    TinyModel(
        name="llama-linear-rope",
        architecture="llama",
        hf_class="Llama",
        seed=4,
        config=tiny_config(
            num_key_value_heads=6,
            rope_parameters={"rope_type": "linear", "rope_theta": 200.0, "factor": 4.0},
        ),
        keys={
            "rope.freq_base": 200.0,
            "rope.dimension_count": 8,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 4.0,
        },
    ),
    TinyModel(
        name="mistral",
        architecture="llama",
        hf_class="Mistral",
        seed=5,
        config=tiny_config(num_key_value_heads=1, sliding_window=None, head_dim=8),
        keys={"rope.freq_base": 10000.0, "rope.dimension_count": 8},
    ),
    TinyModel(
        name="qwen2",
        architecture="qwen2",
        hf_class="Qwen2",
        seed=6,
        config=tiny_config(tie_word_embeddings=True, rms_norm_eps=1e-6),
        keys={"rope.freq_base": 10000.0},
    ),
    TinyModel(
        name="qwen2-yarn",
        architecture="qwen2",
        hf_class="Qwen2",
        seed=7,
        config=tiny_config(
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        ),
        keys={
            "rope.freq_base": 1000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    TinyModel(
        name="llama-yarn-tuned",
        architecture="llama",
        hf_class="Llama",
        seed=8,
        config=tiny_config(
            head_dim=16,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
                "attention_factor": 1.25,
            },
        ),
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.freq_base": 100.0,
            "rope.dimension_count": 16,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 2.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 8.0,
            "rope.scaling.yarn_beta_slow": 2.0,
            "rope.scaling.yarn_attn_factor": 1.25,
        },
    ),
    TinyModel(
        name="qwen3",
        architecture="qwen3",
        hf_class="Qwen3",
        seed=9,
        config=tiny_config(head_dim=16, num_attention_heads=4, num_key_value_heads=2),
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.freq_base": 10000.0,
        },
    ),
    TinyModel(
        name="gemma2",
        architecture="gemma2",
        hf_class="Gemma2",
        seed=10,
        config=tiny_config(
            num_hidden_layers=3,
            num_attention_heads=4,
            head_dim=10,
            query_pre_attn_scalar=10,
            tie_word_embeddings=True,
            sliding_window=9,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0,
            rms_norm_eps=1e-6,
        ),
        keys={
            "attention.key_length": 10,
            "attention.value_length": 10,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "attention.sliding_window": 9,
        },
    ),
    TinyModel(
        name="gemma3",
        architecture="gemma3",
        hf_class="Gemma3",
        seed=11,
        config=tiny_config(
            num_hidden_layers=7,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=14,
            query_pre_attn_scalar=14,
            tie_word_embeddings=True,
            sliding_window=7,
            rms_norm_eps=1e-6,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        ),
        keys={
            "attention.key_length": 14,
            "attention.value_length": 14,
            "attention.sliding_window": 7,
            "rope.freq_base": 5000.0,
            "rope.freq_base_swa": 50.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 2.0,
        },
    ),
    TinyModel(
        name="phi3",
        architecture="phi3",
        hf_class="Phi3",
        seed=12,
        config=tiny_config(
            sliding_window=11,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        ),
        keys={
            "rope.freq_base": 10000.0,
            "rope.dimension_count": 4,
            "rope.scaling.original_context_length": 128,
            "attention.sliding_window": 11,
        },
    ),
    _phi3_longrope("phi3-longrope-long", original=32, seed=13),
    _phi3_longrope("phi3-longrope-short", original=128, seed=14),
    TinyModel(
        name="glm4",
        architecture="glm4",
        hf_class="Glm4",
        seed=15,
        config=tiny_config(
            head_dim=16,
            num_attention_heads=4,
            attention_bias=True,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        ),
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": 8,
        },
    ),
)


SCALED_MODELS: Final = (
    TinyModel(
        name="mistral3",
        architecture="mistral3",
        hf_class="Ministral3",
        seed=16,
        config=tiny_config(
            head_dim=16,
            num_attention_heads=4,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.5,
            },
        ),
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.temperature_scale": 0.5,
            "rope.freq_base": 1000.0,
            "rope.dimension_count": 16,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_log_multiplier": 1.0,
        },
    ),
    TinyModel(
        name="granite",
        architecture="granite",
        hf_class="Granite",
        seed=17,
        config=tiny_config(
            tie_word_embeddings=True,
            embedding_multiplier=3.0,
            residual_multiplier=0.25,
            attention_multiplier=0.2,
            logits_scaling=2.0,
            rms_norm_eps=1e-2,  # large enough for the difference that the scale makes to it
        ),
        keys={
            "rope.freq_base": 10000.0,
            "rope.dimension_count": 8,
            "embedding_scale": 3.0,
            "residual_scale": 0.25,
            "attention.scale": 0.2,
            "logit_scale": 2.0,
        },
    ),
    TinyModel(
        name="smollm3",
        architecture="smollm3",
        hf_class="SmolLM3",
        seed=18,
        config=tiny_config(
            num_hidden_layers=5,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 300.0},
        ),
        keys={"rope.freq_base": 300.0, "rope.dimension_count": 8},
    ),
    TinyModel(
        name="olmo2",
        architecture="olmo2",
        hf_class="Olmo2",
        seed=19,
        config=tiny_config(rope_parameters={"rope_type": "default", "rope_theta": 300.0}),
        keys={"rope.freq_base": 300.0},
    ),
    TinyModel(
        name="olmo3",
        architecture="olmo2",
        hf_class="Olmo3",
        seed=20,
        config=tiny_config(
            num_hidden_layers=5,
            sliding_window=9,
            rope_parameters={
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 300.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        ),
        keys={
            "attention.sliding_window": 9,
            "rope.freq_base": 300.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    TinyModel(
        name="muse-glimmer",
        architecture="muse-glimmer",
        hf_class="MuseGlimmer",
        seed=29,
        config=tiny_config(
            num_hidden_layers=5,
            num_attention_heads=4,
            head_dim=16,
            sliding_window=9,
            max_position_embeddings=1024,
            qk_scale_factor=2.5,
            output_multiplier=0.4,
            final_logit_softcapping=3.0,
            rope_parameters={"rope_type": "default", "rope_theta": 300.0},
        ),
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": np.array([0, 1, 1, 1, 0], np.bool_),
            "rope.freq_base": 300.0,
            "rope.dimension_count": 16,
            "logit_scale": 0.4,
            "final_logit_softcapping": 3.0,
        },
    ),
)
"""Models with the layers of others, and numbers or norms of their own."""


FOLDER_MODELS: Final = (
    *DENSE_MODELS,
    *SCALED_MODELS,
    *EXPERT_MODELS,
    *LATENT_MODELS,
    *GPT_OSS_MODELS,
    *RECURRENT_MODELS,
    *GEMMA4_MODELS,
)
MODELS: Final = (*FOLDER_MODELS, BAILING)


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


def goldens(name: str) -> dict[str, Any]:
    """What Transformers computed for the model of that name; see make_goldens.py."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("goldens.json").read_text())[name]
    return found


def by_name(name: str) -> TinyModel:
    """The recipe of that name."""
    return next(model for model in MODELS if model.name == name)
