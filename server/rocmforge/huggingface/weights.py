"""The tensors of a folder become the weights of a model, under our names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.formats import FORMATS, WeightFormat
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.huggingface.names import NameTable
from rocmforge.huggingface.shards import WeightFile
from rocmforge.models.config import ModelConfig
from rocmforge.models.weights import weight_shape

_READ: Final[Mapping[str, WeightFormat]] = MappingProxyType(
    {"BF16": FORMATS["bf16"], "F16": FORMATS["f16"], "F32": FORMATS["f32"]}
)


def tensors_of(files: Iterable[WeightFile]) -> Iterator[tuple[str, str, Tensor | None]]:
    """Yields name and type of each tensor, and the tensor if its type is one that we read."""
    for file in files:
        for info, data in file.data():
            found = None
            if info.dtype in _READ and info.shape:
                rows = data.reshape(*info.shape[:-1], -1) if info.nbytes else None
                if rows is not None:
                    found = Tensor(info.name, info.shape, _READ[info.dtype], rows)
            yield info.name, info.dtype, found


def read_weights(
    config: ModelConfig,
    files: Iterable[WeightFile],
    names: NameTable,
    *,
    first_position: int = 0,
    is_tied: bool = False,
    norms_add_one: bool = False,
) -> dict[str, Tensor]:
    """Returns the weights as `Checkpoint.weights` has them; reads no data but that of small norms.

    Args:
        config: Describes the model.
        files: Its weights.
        names: What they are called.
        first_position: Row of the table of positions that position 0 has.
        is_tied: The embedding is the output matrix, too, whatever the files hold.
        norms_add_one: The weights of norms are stored less one (Gemma).

    Raises:
        UnsupportedTensor: One is no part of such models, is there twice, or of a type or a shape
            that cannot be.
    """
    weights: dict[str, Tensor] = {}
    for name, dtype, tensor in tensors_of(files):
        places = names.find(name)
        if places is None:
            raise UnsupportedTensor(
                name,
                "mixture-of-experts models are not supported"
                if "experts" in name
                else f"not a part of {config.architecture} models as we know them",
            )
        if not places or (is_tied and places == ("output",)):
            continue
        if tensor is None:
            raise UnsupportedTensor(
                name, f"it is of type {dtype} or has no elements; read are {', '.join(_READ)}"
            )
        for place, part in zip(places, _split(config, tensor, places), strict=True):
            if place in weights:
                raise UnsupportedTensor(name, f"another tensor is {place}, too")
            if place == "embedding.position" and 0 < first_position < part.shape[0]:
                part = part.slice(0, first_position, part.shape[0])
            is_norm = norms_add_one and place.endswith("norm")
            weights[place] = _plus_one(part) if is_norm else part
    return weights


def _split(config: ModelConfig, tensor: Tensor, places: tuple[str, ...]) -> list[Tensor]:
    """Returns the parts of a tensor that holds the rows of several weights."""
    if len(places) == 1:
        return [tensor]
    _, layer, _ = places[0].split(".", 2)
    if int(layer) >= config.num_layers:
        raise UnsupportedTensor(tensor.name, f"the model has {config.num_layers} layers")
    sizes = [weight_shape(config, place)[0] for place in places]
    if tensor.shape[0] != sum(sizes):
        raise UnsupportedTensor(
            tensor.name,
            f"its shape is {tensor.shape}, the configuration asks for {sum(sizes)} rows",
        )
    parts, start = [], 0
    for size in sizes:
        parts.append(tensor.slice(0, start, start + size))
        start += size
    return parts


def _plus_one(norm: Tensor) -> Tensor:
    return float32_tensor(f"1 + {norm.name}", norm.to_float32() + np.float32(1))


def float32_tensor(name: str, values: npt.NDArray[np.float32]) -> Tensor:
    """Returns a tensor of values in memory."""
    data = np.ascontiguousarray(values, "<f4").view(np.uint8)
    data.flags.writeable = False
    return Tensor(name, values.shape, FORMATS["f32"], data)


class Locator:
    """Finds the file that bytes lie in; see `Checkpoint.locate`."""

    def __init__(self, files: Iterable[WeightFile]) -> None:
        self._spans = tuple(
            (file.path, np.frombuffer(file.map, np.uint8).ctypes.data, len(file.map))
            for file in files
        )

    def __call__(self, data: npt.NDArray[np.uint8]) -> tuple[Path, int] | None:
        """Returns the file and the offset in it; None if they are not consecutive bytes of one."""
        if not data.flags.c_contiguous:
            return None
        for path, start, size in self._spans:
            offset = data.ctypes.data - start
            if 0 <= offset <= size - data.nbytes:
                return path, offset
        return None
