"""Random LoRA adapters for the tiny models, in Hugging Face's layout and as GGUF files.

As with `tiny_models`: `make_lora_goldens.py` loads them into PEFT and records logits; the tests
write them as GGUF, the way `convert_lora_to_gguf.py` does, and compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from rocmforge.gguf.reader import open_gguf
from tests.data.models.text.model_files import gguf_layout, gguf_name, hf_shapes
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import Stored, Value, write_gguf

Pair = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

_NOT_ADAPTABLE: Final = ("inp_gate", "proj")  # of another embedding for each layer
MODELS_WITH_GOLDENS: Final = (
    *("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "glm4"),
    "gemma4",  # whose keys are values in some layers
)


@dataclass(frozen=True, kw_only=True)
class TinyAdapter:
    """A recipe: some projections of some layers of a model."""

    seed: int = 1
    rank: int = 4
    alpha: float = 6.0
    targets: tuple[str, ...] = ("_proj",)  # ends of the names of modules
    strength: float = 0.4  # size of what is added, relative to a weight


def hf_pairs(model: TinyModel, adapter: TinyAdapter) -> dict[str, Pair]:
    """A, [rank, in], and B, [out, rank], by the name of the weight they change."""
    rng = np.random.default_rng(adapter.seed)
    pairs = {}
    for name, shape in hf_shapes(model).items():
        if not name.removesuffix(".weight").endswith(adapter.targets):
            continue
        a = rng.standard_normal((adapter.rank, shape[1])) / math.sqrt(shape[1])
        b = rng.standard_normal((shape[0], adapter.rank)) / math.sqrt(adapter.rank)
        pairs[name] = a.astype(np.float32), (adapter.strength * b).astype(np.float32)
    return pairs


def gguf_adapter(model: TinyModel, adapter: TinyAdapter) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of the file. B has the rows of its weight, so it is permuted alike."""
    tensors = {}
    for name, (a, b) in hf_pairs(model, adapter).items():
        tensors[f"{gguf_name(model, name)}.lora_a"] = a
        tensors[f"{gguf_name(model, name)}.lora_b"] = gguf_layout(model, name, b)
    return tensors


def adapter_metadata(model: TinyModel, adapter: TinyAdapter) -> dict[str, Value]:
    """The keys of the file."""
    return {
        "general.architecture": model.architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": adapter.alpha,
    }


def write_adapter(
    path: Path,
    model: TinyModel,
    adapter: TinyAdapter,
    type: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """Writes the adapter, its tensors in the given type, and returns the path."""
    tensors: dict[str, Any] = dict(gguf_adapter(model, adapter))
    if type is not GGMLQuantizationType.F32:
        tensors = {name: Stored.quantized(values, type) for name, values in tensors.items()}
    return write_gguf(path, adapter_metadata(model, adapter), tensors)


def write_random_adapter(path: Path, model: Path, seed: int, rank: int = 8) -> Path:
    """Writes an adapter of all matrices of a model's layers, which changes what it says."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    with open_gguf(model) as file:
        architecture = file.get_str("general.architecture")
        for name, tensor in file.tensors.items():
            parts = name.split(".")
            if parts[0] != "blk" or len(tensor.shape) != 2 or parts[2] in _NOT_ADAPTABLE:
                continue
            rows, columns = tensor.shape
            a = rng.standard_normal((rank, columns)) / math.sqrt(columns)
            b = 0.3 * rng.standard_normal((rows, rank)) / math.sqrt(rank)
            tensors[f"{name}.lora_a"] = a.astype(np.float32)
            tensors[f"{name}.lora_b"] = b.astype(np.float32)
    keys = adapter_metadata(by_name("llama"), TinyAdapter(alpha=2.0 * rank))
    return write_gguf(path, keys | {"general.architecture": architecture}, tensors)
