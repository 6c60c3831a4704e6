"""The tensors of a folder become the weights of a model, under our names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from rocmforge.checkpoint.formats import FORMATS, WeightFormat
from rocmforge.checkpoint.tensor import Tensor, float32_tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.huggingface.files.shards import WeightFile
from rocmforge.huggingface.name_table import ONE_EXPERT, NameTable
from rocmforge.huggingface.packed_experts import PACKED, turn_experts, unpack_experts
from rocmforge.models.config import ModelConfig
from rocmforge.models.layouts import (
    as_declared,
    cut_fused,
    join_bounds,
    join_experts,
    scaled_router_norms,
    with_shared_heads,
    with_unit_norms,
)
from rocmforge.models.weights import place_of

logger = logging.getLogger(__name__)

_READ: Final[Mapping[str, WeightFormat]] = MappingProxyType(
    {
        "BF16": FORMATS["bf16"],
        "F16": FORMATS["f16"],
        "F32": FORMATS["f32"],
        "U8": FORMATS["i8"],  # bytes, of parts of MXFP4
    }
)


def tensors_of(files: Iterable[WeightFile]) -> Iterator[tuple[str, str, Tensor | None]]:
    """Yields name and type of each tensor, and the tensor if its type is one that we read."""
    for file in files:
        for info, data in file.data():
            found = None
            if info.dtype in _READ and info.nbytes:
                shape = info.shape or (1,)  # a number alone is a vector of one
                rows = data.reshape(*shape[:-1], -1)
                found = Tensor(info.name, shape, _READ[info.dtype], rows)
            yield info.name, info.dtype, found


def read_weights(
    config: ModelConfig,
    files: Iterable[WeightFile],
    names: NameTable,
    *,
    first_position: int = 0,
    is_tied: bool = False,
    norms_add_one: bool = False,
    whole_norm: str = "delta.norm",
    predicting_layers: int = 0,
) -> dict[str, Tensor]:
    """Returns the weights as `Checkpoint.weights` has them; reads no data but that of small norms.

    Args:
        config: Describes the model.
        files: Its weights.
        names: What they are called.
        first_position: Row of the table of positions that position 0 has.
        is_tied: The embedding is the output matrix, too, whatever the files hold.
        norms_add_one: The weights of norms are stored less one, but for some.
        whole_norm: What the paths of those end in.
        predicting_layers: Layers behind those of the model that are left out: they predict further
            tokens.

    Raises:
        UnsupportedTensor: One is no part of such models, is there twice, or of a type or a shape
            that cannot be.
    """
    weights: dict[str, Tensor] = {}
    predicting = range(config.num_layers, config.num_layers + predicting_layers)
    if predicting_layers > 0:
        logger.info("%d layers for multi-token prediction are not used", predicting_layers)
    found = _tensors_of_model(files, names, predicting)
    if config.architecture == "gpt-oss":
        found = unpack_experts(found)
    elif config.architecture == "qwen3vlmoe":
        found = turn_experts(config, found)
    elif config.architecture == "gemma4-tower":
        found = join_bounds(found)
    for name, tensor in join_experts(found, *ONE_EXPERT).items():
        paths = names.find(name)
        if paths is None:
            raise UnsupportedTensor(
                tensor.name, f"not a part of {config.architecture} models as we know them"
            )
        if is_tied and paths == ("output",):
            continue
        if twice := weights.keys() & paths:
            raise UnsupportedTensor(name, f"another tensor is {min(twice)}, too")
        parts = {paths[0]: as_declared(tensor, place_of(paths[0]))}
        if len(paths) > 1:
            layer = int(paths[0].split(".")[1])
            if layer >= config.num_layers:
                raise UnsupportedTensor(name, f"the model has {config.num_layers} layers")
            parts = cut_fused(config, tensor, [place_of(path) for path in paths])
        for path, part in parts.items():
            if path == "embedding.position" and 0 < first_position < part.shape[0]:
                part = part.slice(0, first_position, part.shape[0])
            if norms_add_one and path.endswith("norm") and not path.endswith(whole_norm):
                part = plus_one(part)
            elif path.endswith(("delta.decay", "mamba.decay")):  # its logarithm is stored
                part = float32_tensor(f"-exp({part.name})", -np.exp(part.to_float32()))
            weights[path] = part
    weights = scaled_router_norms(config, with_shared_heads(config, weights))
    if config.architecture == "muse-glimmer":
        unit = "embedding.norm", "attention.q_norm", "attention.k_norm"
        weights = with_unit_norms(config, weights, unit)
    return weights


def _tensors_of_model(
    files: Iterable[WeightFile], names: NameTable, layers_left_out: range
) -> dict[str, Tensor]:
    """Returns the tensors that are not left out, by their names."""
    found: dict[str, Tensor] = {}
    for name, dtype, tensor in tensors_of(files):
        pattern, together = ONE_EXPERT
        is_left_out = names.layer_of(name) in layers_left_out
        if is_left_out or names.find(pattern.sub(together, name)) == ():
            continue
        if tensor is None or (dtype == "U8" and not PACKED.search(name)):
            plain = ", ".join(dtype for dtype in _READ if dtype != "U8")
            raise UnsupportedTensor(
                name, f"it is of type {dtype} or has no elements; read are {plain}"
            )
        if name in found:
            raise UnsupportedTensor(name, "it is there twice")
        found[name] = tensor
    return found


def plus_one(norm: Tensor) -> Tensor:
    """Returns the weight of a norm that is stored less one."""
    return float32_tensor(f"1 + {norm.name}", norm.to_float32() + np.float32(1))
