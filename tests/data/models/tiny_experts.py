"""Tiny models with experts: recipes, and the weights that they have in place of a dense network."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from tests.data.models.tiny_model import Tensors, TinyModel, tiny_config

EXPERT_MODELS: Final = (
    TinyModel(
        name="qwen3moe",
        architecture="qwen3moe",
        hf_class="Qwen3Moe",
        seed=31,
        config=tiny_config(
            head_dim=16,
            num_attention_heads=4,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            norm_topk_prob=True,
        ),
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.freq_base": 10000.0,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
        },
    ),
    TinyModel(
        name="mixtral",
        architecture="llama",
        hf_class="Mixtral",
        seed=32,
        config=tiny_config(
            head_dim=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=None,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
        keys={
            "rope.freq_base": 10000.0,
            "rope.dimension_count": 8,
            "expert_count": 4,
            "expert_used_count": 2,
        },
    ),
)
EXPERT_CLASSES: Final = frozenset(model.hf_class for model in EXPERT_MODELS)

_ONE_EXPERT: Final = re.compile(r"(.*\.experts\.)(\d+)\.(.*)")
_OF_MIXTRAL: Final = ("w1", "w3", "w2")
_OF_OTHERS: Final = ("gate_proj", "up_proj", "down_proj")
"""The names of gate, up and down."""


def expert_shapes(model: TinyModel, layer: int) -> dict[str, tuple[int, ...]]:
    """The weights of a layer's experts by Hugging Face's names; none if it has no experts."""
    config = model.config
    count = config.get("num_experts", config.get("num_local_experts", 0))
    if not count:
        return {}
    is_mixtral = model.hf_class == "Mixtral"
    block = "block_sparse_moe" if is_mixtral else "mlp"
    gate, up, down = _OF_MIXTRAL if is_mixtral else _OF_OTHERS
    dim = config["hidden_size"]
    ffn = config.get("moe_intermediate_size", config["intermediate_size"])
    shapes: dict[str, tuple[int, ...]] = {f"{block}.gate.weight": (count, dim)}
    for expert in range(count):
        prefix = f"{block}.experts.{expert}"
        shapes |= {f"{prefix}.{name}.weight": (ffn, dim) for name in (gate, up)}
        shapes[f"{prefix}.{down}.weight"] = (dim, ffn)
    return shapes


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
