"""A tiny random model with the tower of Qwen3-VL, whose text part has experts.

The seed is such that no token is near the border between two experts: the last chosen one is better
than the next by 0.0015 at least, thousands of roundings.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.data.models.towers.tiny_tower import Tensors, TinyTower
from tests.data.models.towers.tiny_towers import QWEN3_VL

_EXPERTS: Final = ".experts."


class TinyPictureExperts(TinyTower):
    """A recipe."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        text, found = self.config["text_config"], super().shapes
        count, size = text["num_experts"], text["moe_intermediate_size"]
        width = text["hidden_size"]
        for index in range(text["num_hidden_layers"]):
            stem = f"model.language_model.layers.{index}.mlp."
            is_sparse = (index + 1) % text["decoder_sparse_step"] == 0
            if not is_sparse or index in text["mlp_only_layers"]:
                continue
            for part in ("gate", "up", "down"):
                del found[f"{stem}{part}_proj.weight"]
            found |= {
                f"{stem}gate.weight": (count, width),
                f"{stem}experts.gate_up_proj": (count, 2 * size, width),
                f"{stem}experts.down_proj": (count, width, size),
            }
        return found

    def stored(self, weights: Tensors) -> Tensors:
        """As published: matrices of experts are transposed."""
        return {
            name: np.ascontiguousarray(weight.swapaxes(1, 2)) if _EXPERTS in name else weight
            for name, weight in weights.items()
        }

    def cut(self, weights: Tensors) -> Tensors:
        found: Tensors = {}
        for name, weight in weights.items():
            stem, _, part = name.rpartition(_EXPERTS)
            if part == "gate_up_proj":
                gate, up = np.split(weight, 2, axis=1)
                found[f"{stem}{_EXPERTS}gate_proj.weight"] = gate
                found[f"{stem}{_EXPERTS}up_proj.weight"] = up
            else:
                found[f"{name}.weight" if stem else name] = weight
        return found


_TEXT: Final[dict[str, Any]] = {
    **QWEN3_VL.config["text_config"],
    "model_type": "qwen3_vl_moe_text",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
QWEN3_VL_MOE: Final = TinyPictureExperts(
    name="qwen3_vl_moe",
    config={
        **QWEN3_VL.config,
        "model_type": "qwen3_vl_moe",
        "text_config": _TEXT,
        "vision_config": {**QWEN3_VL.config["vision_config"], "model_type": "qwen3_vl_moe"},
    },
    processor=QWEN3_VL.processor,
    seed=68,
)
