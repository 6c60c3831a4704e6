"""The weights of a folder: one safetensors file, or the shards that its index names."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.errors import BadFolder, ModelFileNotFound
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.files.safetensors import StoredTensor, header_bytes, parse_header

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
MAX_INDEX_BYTES: Final = 32 << 20
MAX_SHARDS: Final = 2048
_PICKLED: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_OTHERS: Final = ("tf_model.h5", "flax_model.msgpack", "model.onnx")


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One mapped file and its tensors."""

    path: Path
    map: mmap.mmap
    tensors: tuple[StoredTensor, ...]

    def data(self) -> Iterator[tuple[StoredTensor, npt.NDArray[np.uint8]]]:
        """Yields each tensor with its bytes, uint8 [nbytes], which keep the file mapped."""
        for info in self.tensors:
            yield info, np.frombuffer(self.map, np.uint8, info.nbytes, info.offset)


def map_shards(folder: Folder) -> tuple[WeightFile, ...]:
    """Maps the weights of a model.

    Raises:
        ModelFileNotFound: There are none, or a shard is missing.
        BadFolder: A header or the index is wrong, or there are pickled weights only.
    """
    if folder.find(WEIGHTS) is not None:
        return (map_file(folder, WEIGHTS),)
    places = _index(folder)
    names = dict.fromkeys(places.values())
    if len(names) > MAX_SHARDS:
        raise folder.bad(f"{INDEX} names {len(names)} files; there may be {MAX_SHARDS}")
    shards = []
    found: dict[str, str] = {}
    for name in names:
        shard = map_file(folder, name)
        for info in shard.tensors:
            if info.name in found:
                raise folder.bad(f"the tensor {info.name!r} is in {found[info.name]} and in {name}")
            found[info.name] = name
        shards.append(shard)
    for tensor, name in places.items():
        if found.get(tensor) != name:
            raise folder.bad(f"{INDEX} says that the tensor {tensor!r} is in {name}: it is not")
    return tuple(shards)


def map_file(folder: Folder, name: str) -> WeightFile:
    """Maps one safetensors file of the folder.

    Raises:
        ModelFileNotFound: There is none of that name.
        BadFolder: Its header is wrong, or its name leads out of the folder.
    """
    path = folder.require(name)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = header_bytes(file.read(8), size, folder.path / name)
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileNotFound(f"{path}: cannot be read: {error.strerror}.") from error
    return WeightFile(path, mapped, parse_header(mapped[:length], size, folder.path / name))


def _index(folder: Folder) -> Mapping[str, str]:
    """Returns the file of each tensor, by the index."""
    index = folder.json(INDEX, MAX_INDEX_BYTES)
    if index is None:
        raise _no_weights(folder)
    section = index.get_object("weight_map")
    if section is None or not section.values:
        raise index.bad("weight_map", "it is missing or empty")
    return MappingProxyType({tensor: section.get_str(tensor) for tensor in section.values})


def _no_weights(folder: Folder) -> BadFolder | ModelFileNotFound:
    for name in _PICKLED:
        if folder.find(name) is not None:
            return folder.bad(
                f"its weights are pickled ({name}): to read them would run code of the folder. "
                "Save the model as safetensors: save_pretrained() of Transformers does"
            )
    for name in _OTHERS:
        if folder.find(name) is not None:
            return folder.bad(f"its weights are in {name}; only safetensors are read")
    return ModelFileNotFound(f"{folder.path}: there is neither {WEIGHTS} nor {INDEX}.")
