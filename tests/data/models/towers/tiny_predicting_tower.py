"""A tiny model that takes images and predicts further tokens of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.data.models.towers.tiny_towers import QWEN35
from tests.data.models.towers.tower_files import hf_weights, write_tower_folder
from tests.support.files.safetensors_writer import write_safetensors


def write_predicting_tower(path: Path, *, ends_with_states: bool = False) -> Path:
    """Writes a folder of Qwen 3.5 with a predictor that is always right; returns its path.

    No layer of the model adds anything, and the predictor looks at a token alone.

    Args:
        path: The folder.
        ends_with_states: Whether the last layer is one that no predictor can be like.
    """
    text = dict(QWEN35.config["text_config"])
    kinds, size = sorted(text["layer_types"]), text["hidden_size"]
    text["layer_types"] = kinds if ends_with_states else kinds[::-1]
    model = replace(QWEN35, config={**QWEN35.config, "text_config": text})
    write_tower_folder(model, path)
    attends = text["layer_types"].index("full_attention")
    weights, last = hf_weights(model), f"model.language_model.layers.{attends}."
    weights |= {
        name.replace(last, "mtp.layers.0."): weight
        for name, weight in weights.items()
        if name.startswith(last)
    }
    ends = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
    for name in weights:
        if name.endswith(ends) and not name.startswith("model.visual."):
            weights[name] = np.zeros_like(weights[name])
    identity = np.concatenate([np.eye(size), np.zeros((size, size))], axis=1)
    weights["mtp.fc.weight"] = identity.astype(np.float32)
    weights["mtp.norm.weight"] = weights["model.language_model.norm.weight"]
    for part in ("embedding", "hidden"):
        weights[f"mtp.pre_fc_norm_{part}.weight"] = np.zeros(size, np.float32)
    write_safetensors(path / "model.safetensors", weights)
    return path
