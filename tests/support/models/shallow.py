"""Models and drafts for them: the first layers, models that say no more than those, predictors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from rocmforge.gguf.config.reading import read_config
from rocmforge.gguf.reader import open_gguf
from tests.support.files.gguf_writer import Stored, write_gguf

Tensor: TypeAlias = npt.NDArray[Any] | Stored

_LAST: Final = (
    *("attn_output.weight", "ssm_out.weight"),
    *("ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight"),
)
"""Matrices without which a layer adds nothing."""


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
        tensors: dict[str, Tensor] = {}
        for name, tensor in file.tensors.items():
            stored = Stored(tensor.data, GGMLQuantizationType[str(tensor.format)])
            name = name.replace("ffn_norm", "post_attention_norm")
            tensors[name] = stored
            if _layer(name) == layers - 1:
                tensors[name.replace(f"blk.{layers - 1}.", f"blk.{layers}.")] = stored
        return write_gguf(path, metadata, with_right_predictor(tensors, layers, size))


def with_right_predictor(tensors: Mapping[str, Any], layers: int, size: int) -> dict[str, Any]:
    """The tensors of a model whose layers add nothing, and what a predictor needs beside its layer.

    That is among them, behind the others: it adds nothing either.
    """
    place, ones = f"blk.{layers}.nextn.", np.ones(size, np.float32)
    matrix = np.concatenate([np.eye(size), np.zeros((size, size))], axis=1)
    return {
        **{name: _zeros(each) if name.endswith(_LAST) else each for name, each in tensors.items()},
        f"{place}eh_proj.weight": matrix.astype(np.float16),
        f"{place}enorm.weight": ones,
        f"{place}hnorm.weight": ones,
    }


def _zeros(tensor: Tensor) -> Tensor:
    """Zeros of the same stored type, if that has zero for zeroed bytes."""
    if isinstance(tensor, Stored):
        return replace(tensor, data=np.zeros_like(tensor.data))
    return np.zeros_like(tensor)


def _rewrite(model: Path, path: Path, num_layers: int, num_busy: int) -> Path:
    with open_gguf(model) as file:
        metadata = dict(file.metadata)
        metadata[f"{metadata['general.architecture']}.block_count"] = num_layers
        tensors: dict[str, Tensor] = {}
        for name, tensor in file.tensors.items():
            layer = _layer(name)
            stored = Stored(tensor.data, GGMLQuantizationType[str(tensor.format)])
            if layer < num_layers:
                is_idle = layer >= num_busy and name.endswith(_LAST)
                tensors[name] = _zeros(stored) if is_idle else stored
        return write_gguf(path, metadata, tensors)


def _layer(name: str) -> int:
    """The layer a tensor belongs to; -1 = none."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else -1
