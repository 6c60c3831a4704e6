"""The tiny models that llama.cpp has computed, too, and what it found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_experts import BAILING, EXPERT_MODELS, GPT_OSS, LATENT_MODELS
from tests.data.models.text.tiny_gemma4 import GEMMA4_MODELS
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import SCALED_MODELS
from tests.data.models.text.tiny_recurrent import RECURRENT_MODELS
from tests.support.files.gguf_writer import write_gguf

CONTINUED: Final = 16
"""Greedy tokens behind the prompt."""
GOLDENS: Final = Path(__file__).with_name("llama_cpp_goldens.json")

_ALL_HEADS: Final = {"num_key_value_heads": 6}
_CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "olmoe": _ALL_HEADS,
    "dots1": _ALL_HEADS,
    "bailingmoe2": {"hidden_size": 64},
    "ernie4_5-moe": {"moe_layer_interval": 1},
}
_KEYS: Final[dict[str, dict[str, Any]]] = {
    "ernie4_5-moe": {
        "interleave_moe_layer_step": 1,
        "expert_shared_feed_forward_length": 48,
    },
    "deepseek-v2": {"attention.q_lora_rank": 0},
    "glm4-moe-lite": {"expert_gating_func": 2},
    "minimax-m2": {"expert_feed_forward_length": 72},
    # It rounds what the YaRN of gpt-oss does not.
    "gpt-oss": {"rope.scaling.type": "none", "rope.scaling.factor": 1.0},
}
"""What llama.cpp takes for granted; Transformers is the oracle of the rest."""


def _for_llama_cpp(model: TinyModel) -> TinyModel:
    return replace(
        model,
        config=model.config | _CONFIGS.get(model.name, {}),
        keys=model.keys | _KEYS.get(model.name, {}),
    )


MODELS: Final = tuple(
    _for_llama_cpp(model)
    for model in (
        *SCALED_MODELS,
        *EXPERT_MODELS,
        *LATENT_MODELS,
        GPT_OSS,
        BAILING,
        *RECURRENT_MODELS,
        *GEMMA4_MODELS,
    )
)


def write_for_llama_cpp(model: TinyModel, folder: Path) -> Path:
    """Writes a model as a float32 GGUF file that llama.cpp opens, and returns its path."""
    metadata = gguf_metadata(model) | {"tokenizer.ggml.model": "no_vocab"}
    return write_gguf(folder / f"{model.name}.gguf", metadata, gguf_tensors(model))


def llama_cpp_golden(name: str) -> dict[str, Any]:
    """What llama.cpp computed for the model of that name; see make_llama_cpp_goldens.py."""
    found: dict[str, Any] = json.loads(GOLDENS.read_text())[name]
    return found
