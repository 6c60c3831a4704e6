"""Models with a predictor, of tiny ones without: one that guesses badly, and one that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rocmforge.backend.protocol import Backend, LoadOptions, Runner
from rocmforge.opening import open_checkpoint
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_model import Tensors, TinyModel
from tests.support.files.gguf_writer import write_gguf
from tests.support.models.shallow import with_right_predictor


def predicting_tensors(model: TinyModel, *, is_right: bool = False) -> Tensors:
    """The model's tensors and those of a predictor, whose layer is a copy of the last one.

    If it is right, no layer adds anything: what follows a token depends on that token alone, and
    the predictor looks at no more.
    """
    tensors: Tensors = dict(gguf_tensors(model))
    layers, size = model.config["num_hidden_layers"], model.config["hidden_size"]
    last = f"blk.{layers - 1}."
    copies = {
        name.replace(last, f"blk.{layers}."): values
        for name, values in tensors.items()
        if name.startswith(last)
    }
    tensors |= copies
    if is_right:
        return with_right_predictor(tensors, layers, size)
    rng = np.random.default_rng(model.seed)

    def random(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    mine = {
        "eh_proj": random(size, 2 * size) * np.float32(1 / np.sqrt(size)),
        "enorm": 1 + 0.2 * random(size),
        "hnorm": 1 + 0.2 * random(size),
        "shared_head_norm": 1 + 0.2 * random(size),
    }
    return tensors | {f"blk.{layers}.nextn.{name}.weight": each for name, each in mine.items()}


def write_predicting(model: TinyModel, path: Path, *, is_right: bool = False) -> Path:
    """Writes the model with a predictor."""
    keys = gguf_metadata(model)
    name = model.architecture
    keys[f"{name}.block_count"] = model.config["num_hidden_layers"] + 1
    keys[f"{name}.nextn_predict_layers"] = 1
    return write_gguf(path, keys, predicting_tensors(model, is_right=is_right))


def load_predicting(backend: Backend, path: Path, options: LoadOptions) -> Runner:
    """Loads a model with its predictor."""
    with open_checkpoint(path, predicts=True) as checkpoint:
        assert checkpoint.config.predicts
        return backend.load(checkpoint, options, lambda stage, share: None)
