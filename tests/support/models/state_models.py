"""Tiny models with states in sizes that the HIP backend has kernels for, on one device or more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_mamba import MAMBA_CLASSES, larger_mamba
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_recurrent import larger_delta, larger_liquid
from tests.support.files.gguf_writer import Stored, write_gguf

CUT: Final = {"vocab_size": 96, "intermediate_size": 128, "num_attention_heads": 4}
_SEEDS: Final = {
    "qwen35moe": 438,
    "qwen3next": 412,
    "lfm2moe": 423,
    "nemotron_h_moe": 425,
    "nemotron_h_moe-latent": 422,
    "granitehybrid": 403,
}
_WIDER: Final = {"hidden_size": 256, "num_key_value_heads": 2}  # where this is of all heads


def larger(model: TinyModel, **changes: Any) -> TinyModel:
    """The model in sizes that there are kernels for, and with changes of its configuration."""
    if model.hf_class in MAMBA_CLASSES:
        return larger_mamba(model, **changes)
    if model.name.startswith("lfm2"):
        return larger_liquid(model, **changes)
    return larger_delta(model, **changes)


def divisible(model: TinyModel) -> TinyModel:
    """The model in sizes that two devices divide, and four.

    Those with Gated DeltaNet have one key-value head, which all devices have, the others two. All
    devices have the one group of Granite's Mamba-2. In these sizes, too, no token is near the
    border between two experts.
    """
    found = _cut(model)
    return replace(found, seed=_SEEDS.get(found.name, found.seed))


def _cut(model: TinyModel) -> TinyModel:
    if model.hf_class == "NemotronH":
        return larger_mamba(model, groups=4, num_heads=16, **CUT, num_key_value_heads=2)
    if model.hf_class in MAMBA_CLASSES:
        return larger_mamba(model, groups=1, num_heads=16, **CUT, **_WIDER)
    if model.name.startswith("lfm2"):
        return larger_liquid(model, **CUT, **_WIDER)
    return larger_delta(model, delta_heads=(4, 16), **CUT)


def with_layers(model: TinyModel, kinds: tuple[str, ...], **changes: Any) -> TinyModel:
    """The larger model with layers of these kinds."""
    name = "layers_block_type" if "layers_block_type" in model.config else "layer_types"
    config = model.config | {name: [*kinds], "num_hidden_layers": len(kinds)}
    model = larger(replace(model, name=f"{model.name}-{len(kinds)}", config=config), **changes)
    if model.hf_class.startswith("Lfm2"):
        heads = np.array([int(kind == "full_attention") for kind in kinds], np.int32)
        model = replace(model, keys=model.keys | {"attention.head_count_kv": heads})
    return model


def write_states(
    model: TinyModel, folder: Path, stored: str = "", *, of_experts: bool = False
) -> Path:
    """Writes the model with its matrices as Q8_0, if they are to be; those of experts, too."""
    tensors = gguf_tensors(model)
    for name, values in tensors.items() if stored else ():
        is_matrix = values.ndim in ((2, 3) if of_experts else (2,)) and values.shape[-1] % 32 == 0
        if is_matrix and not name.endswith(("ssm_norm.weight", "inp.weight")):
            kind = GGMLQuantizationType.Q8_0
            tensors[name] = Stored(quantize(values, kind), kind)
    return write_gguf(folder / f"{model.name}.gguf", gguf_metadata(model), tensors)
