"""The tiny models as folders, as Transformers saves them.

`config.json` is the one that Transformers wrote (see make_folder_configs.py), the weights are those
of the recipe, under Hugging Face's names: nothing is converted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.data.models import tiny_encoders, tiny_models
from tests.data.models.tiny_encoders import TinyEncoder
from tests.data.models.tiny_models import TinyModel
from tests.support.safetensors_writer import bfloat16, write_index, write_safetensors

_CONFIGS: Final = Path(__file__).with_name("folder_configs.json")


def folder_config(model: TinyModel | TinyEncoder) -> dict[str, Any]:
    """The model's `config.json`."""
    if isinstance(model, TinyEncoder) and model.is_jina:
        return {
            "architectures": ["JinaBertModel"],
            "auto_map": {"AutoModel": "modeling_bert.JinaBertModel"},
            "feed_forward_type": "geglu",
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
            "model_type": "bert",
            "position_embedding_type": "alibi",
            **model.config,
        }
    found: dict[str, Any] = json.loads(_CONFIGS.read_text())[model.name]
    return found


def write_folder(
    model: TinyModel | TinyEncoder,
    path: Path,
    *,
    dtype: str = "float32",
    shards: int = 1,
    config: dict[str, Any] | None = None,
) -> Path:
    """Writes a folder and returns its path.

    Args:
        model: The recipe.
        path: The folder, which is made.
        dtype: "float32", "float16" or "bfloat16".
        shards: Files that the weights are spread over.
        config: What to change in `config.json`.
    """
    path.mkdir(parents=True)
    text = json.dumps({**folder_config(model), **(config or {})}, indent=2)
    (path / "config.json").write_text(text)
    recipes = tiny_encoders if isinstance(model, TinyEncoder) else tiny_models
    weights = recipes.hf_weights(model)
    stored = {name: _stored(weight, dtype) for name, weight in weights.items()}
    if shards == 1:
        write_safetensors(path / "model.safetensors", stored)
        return path
    places = {
        name: f"model-{index % shards + 1:05}-of-{shards:05}.safetensors"
        for index, name in enumerate(stored)
    }
    for file in dict.fromkeys(places.values()):
        write_safetensors(path / file, {n: w for n, w in stored.items() if places[n] == file})
    write_index(path, places)
    return path


def _stored(weight: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    return bfloat16(weight) if dtype == "bfloat16" else weight.astype(dtype)
