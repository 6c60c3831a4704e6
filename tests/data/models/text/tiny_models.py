"""Tiny random models of every architecture, in Hugging Face's layout and as GGUF files.

A model is a recipe: the Transformers class and configuration, and a seed. `model_files.py` makes
its weights and its file. `make_goldens.py` loads them into Transformers and records logits, which
the tests compare with.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.data.models.text.tiny_experts import (
    BAILING,
    EXPERT_MODELS,
    GPT_OSS_MODELS,
    LATENT_MODELS,
)
from tests.data.models.text.tiny_gemma4 import GEMMA4_MODELS
from tests.data.models.text.tiny_model import TinyModel, plain_rope, tiny_config
from tests.data.models.text.tiny_recurrent import RECURRENT_MODELS

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
        config=tiny_config(rope_parameters=plain_rope(300.0)),
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
                "sliding_attention": plain_rope(50.0),
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
            rope_parameters=plain_rope(10000.0, partial_rotary_factor=0.5),
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
            rope_parameters=plain_rope(10000.0, partial_rotary_factor=0.5),
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
            rope_parameters=plain_rope(300.0),
        ),
        keys={"rope.freq_base": 300.0, "rope.dimension_count": 8},
    ),
    TinyModel(
        name="olmo2",
        architecture="olmo2",
        hf_class="Olmo2",
        seed=19,
        config=tiny_config(rope_parameters=plain_rope(300.0)),
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
                "sliding_attention": plain_rope(300.0),
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
            rope_parameters=plain_rope(300.0),
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


def goldens(name: str) -> dict[str, Any]:
    """What Transformers computed for the model of that name; see make_goldens.py."""
    path = Path(__file__).parents[1] / "goldens/goldens.json"
    found: dict[str, Any] = json.loads(path.read_text())[name]
    return found


def by_name(name: str) -> TinyModel:
    """The recipe of that name."""
    return next(model for model in MODELS if model.name == name)
