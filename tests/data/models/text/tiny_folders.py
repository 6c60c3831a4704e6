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

from tests.data.models.text import model_files, tiny_encoders
from tests.data.models.text.tiny_adapters import TinyAdapter, hf_pairs
from tests.data.models.text.tiny_encoders import TinyEncoder
from tests.data.models.text.tiny_model import TinyModel
from tests.support.files.safetensors_writer import bfloat16, write_index, write_safetensors

_CONFIGS: Final = Path(__file__).parents[1] / "goldens/folder_configs.json"
_SIZES: Final = (
    *("hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "num_hidden_layers"),
    *("linear_key_head_dim", "linear_value_head_dim", "shared_expert_intermediate_size"),
    *("linear_num_key_heads", "linear_num_value_heads"),
)
"""What tests may change in a recipe."""


def folder_config(model: TinyModel | TinyEncoder) -> dict[str, Any]:
    """The `config.json` of a model, which may be a recipe with other sizes."""
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
    changed = {key: value for key, value in model.config.items() if key in _SIZES}
    if model.architecture.startswith("gemma"):  # scores are scaled by it, as GGUF takes for granted
        changed["query_pre_attn_scalar"] = model.config["head_dim"]
    if isinstance(model, TinyModel) and model.is_packed:
        changed["quantization_config"] = {"quant_method": "mxfp4"}
    return found | changed


def write_folder(
    model: TinyModel | TinyEncoder,
    path: Path,
    *,
    dtype: str = "float32",
    widen: bool = False,
    shards: int = 1,
    config: dict[str, Any] | None = None,
) -> Path:
    """Writes a folder and returns its path.

    Args:
        model: The recipe.
        path: The folder, which is made.
        dtype: "float32", "float16" or "bfloat16".
        widen: Write the values that this type holds as float32.
        shards: Files that the weights are spread over.
        config: What to change in `config.json`.
    """
    path.mkdir(parents=True)
    text = json.dumps({**folder_config(model), **(config or {})}, indent=2)
    (path / "config.json").write_text(text)
    recipes = tiny_encoders if isinstance(model, TinyEncoder) else model_files
    weights = recipes.hf_weights(model)
    stored = {name: _stored(weight, dtype, widen) for name, weight in weights.items()}
    _write_modules(path, {name: stored.pop(name) for name in weights if "/" in name})
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


def _write_modules(path: Path, matrices: dict[str, npt.NDArray[Any]]) -> None:
    """Writes matrices as modules of Sentence-Transformers, behind a mean; none writes nothing."""
    if not matrices:
        return
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    for name, matrix in matrices.items():
        folder, name = name.split("/")
        kinds[folder] = "Dense"
        (path / folder).mkdir()
        write_safetensors(path / folder / "model.safetensors", {name: matrix})
        config = {
            **dict(zip(("out_features", "in_features"), matrix.shape, strict=True)),
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        (path / folder / "config.json").write_text(json.dumps(config))
    modules = [
        {"idx": index, "name": str(index), "path": folder, "type": f"sentence_transformers.{kind}"}
        for index, (folder, kind) in enumerate((kinds | {"4_Normalize": "Normalize"}).items())
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')


def _stored(weight: npt.NDArray[np.float32], dtype: str, widen: bool) -> npt.NDArray[Any]:
    if weight.dtype == np.uint8:
        return weight
    if dtype != "bfloat16":
        narrow = weight.astype(dtype)
        return narrow.astype(np.float32) if widen else narrow
    cut = bfloat16(weight)
    return (cut.astype(np.uint32) << 16).view(np.float32) if widen else cut


def write_adapter_folder(path: Path, model: TinyModel, adapter: TinyAdapter, **config: Any) -> Path:
    """Writes an adapter as PEFT saves it, with more keys in its configuration."""
    path.mkdir(parents=True)
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
        "alpha_pattern": {},
        "rank_pattern": {},
        **config,
    }
    (path / "adapter_config.json").write_text(json.dumps(values))
    tensors = {}
    for name, (a, b) in hf_pairs(model, adapter).items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{module}.lora_A.weight"] = a
        tensors[f"{module}.lora_B.weight"] = b
    write_safetensors(path / "adapter_model.safetensors", tensors)
    return path
