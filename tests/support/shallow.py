"""Models and drafts for them: the first layers, models that say no more than those, predictors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType

from rocmforge.gguf.config import read_config
from rocmforge.gguf.reader import open_gguf
from tests.support.gguf_writer import Stored, write_gguf


def write_shallow(model: Path, num_layers: int, path: Path) -> Path:
    """Writes the model with its first layers only."""
    return _rewrite(model, path, num_layers, num_layers)


def write_idle(model: Path, num_layers: int, path: Path) -> Path:
    """Writes the model with later layers that add nothing: it computes what `write_shallow`'s does.

    Their last matrices are zero, in every stored type that has zero for zeroed bytes.
    """
    with open_gguf(model) as file:
        all_layers = read_config(file).num_layers
    return _rewrite(model, path, all_layers, num_layers)


def write_right_predictor(model: Path, path: Path) -> Path:
    """Writes a Llama model as one of GLM-4.5 with a predictor that is always right.

    No layer adds anything, in every stored type that has zero for zeroed bytes. The predictor's
    layer is a copy of the last one, and its matrix takes over the embedding.
    """
    with open_gguf(model) as file:
        keys = dict(file.metadata)
        config = read_config(file)
        layers, size = config.num_layers, config.hidden_size
        metadata = {key.replace("llama.", "glm4moe.", 1): value for key, value in keys.items()}
        metadata |= {"general.architecture": "glm4moe", "glm4moe.block_count": layers + 1}
        metadata["glm4moe.nextn_predict_layers"] = 1
        tensors = {}
        for name, tensor in file.tensors.items():
            is_last = name.endswith(("attn_output.weight", "ffn_down.weight"))
            data = np.zeros_like(tensor.data) if is_last else tensor.data
            stored = Stored(data, GGMLQuantizationType[str(tensor.format)])
            name = name.replace("ffn_norm", "post_attention_norm")
            tensors[name] = stored
            if _layer(name) == layers - 1:
                tensors[name.replace(f"blk.{layers - 1}.", f"blk.{layers}.")] = stored
        matrix = np.concatenate([np.eye(size), np.zeros((size, size))], axis=1)
        place, ones = f"blk.{layers}.nextn.", np.ones(size, np.float32)
        return write_gguf(
            path,
            metadata,
            tensors
            | {f"{place}eh_proj.weight": matrix.astype(np.float16)}
            | {f"{place}{norm}.weight": ones for norm in ("enorm", "hnorm")},
        )


def _rewrite(model: Path, path: Path, num_layers: int, num_busy: int) -> Path:
    with open_gguf(model) as file:
        metadata = dict(file.metadata)
        metadata[f"{metadata['general.architecture']}.block_count"] = num_layers
        tensors = {}
        for name, tensor in file.tensors.items():
            layer = _layer(name)
            is_last = name.endswith(("attn_output.weight", "ffn_down.weight"))
            data = np.zeros_like(tensor.data) if layer >= num_busy and is_last else tensor.data
            if layer < num_layers:
                tensors[name] = Stored(data, GGMLQuantizationType[str(tensor.format)])
        return write_gguf(path, metadata, tensors)


def _layer(name: str) -> int:
    """The layer a tensor belongs to; -1 = none."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else -1
