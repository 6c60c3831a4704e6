"""Models and drafts for them: the first layers, and models that say no more than those."""

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
