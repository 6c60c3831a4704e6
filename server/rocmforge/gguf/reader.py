"""Open a GGUF file: metadata, and tensors as views into a read-only memory map.

The format is specified in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A model may
be split into shards `NAME-00001-of-0000N.gguf` as llama.cpp's `gguf-split` writes them: metadata
is in the first, each has tensors of its own, and the keys `split.*` say which is which.

Opening reads the header only. Tensor data is paged in by the operating system as it is used, so a
file must not be shortened while it is open (SIGBUS): put a new one in its place by renaming.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from rocmforge.checkpoint.locator import Locator
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import BadGguf, ModelFileNotFound
from rocmforge.gguf.constants import SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS_COUNT
from rocmforge.gguf.header import Header, parse_header
from rocmforge.gguf.metadata import TypedMetadata

_FIRST_SHARD_NAME = re.compile(r"(?P<prefix>.+)-00001-of-(?P<count>\d{5})\.gguf")


def open_gguf(path: Path) -> GgufFile:
    """Opens a GGUF file, or all shards of a model given its first.

    Raises:
        ModelFileNotFound: The file or one of its shards is not there or cannot be read.
        BadGguf: A header is not valid, or the shards do not belong together.
        UnsupportedTensor: A tensor has an unknown type.
    """
    first = _map_shard(path)
    return GgufFile((first, *_map_siblings(first.header)))


@dataclass(frozen=True, slots=True)
class _Shard:
    header: Header
    map: mmap.mmap

    def tensors(self) -> Iterator[Tensor]:
        for info in self.header.tensors:
            start = self.header.data_start + info.offset
            data = np.frombuffer(self.map, np.uint8, info.nbytes, start)
            yield Tensor(
                name=info.name,
                shape=info.shape,
                format=info.format,
                data=data.reshape(*info.shape[:-1], -1),
            )


class GgufFile(TypedMetadata):
    """An open model: metadata by key, tensors by name in the order of the file.

    Attributes:
        path: The file, or the first shard.
        metadata: All keys of that file; the typed getters are usually what you want.
        version: GGUF version of that file, 2 or 3.
        alignment: Bytes to which that file aligns tensor data.
        size_bytes: Size on disk of all shards together.
        locate: Finds the bytes of a tensor in them.
        tensors: The tensors of all shards.
    """

    def __init__(self, shards: tuple[_Shard, ...]) -> None:
        header = shards[0].header
        super().__init__(header.path, MappingProxyType(header.metadata))
        self.version = header.version
        self.alignment = header.alignment
        self.size_bytes = sum(len(shard.map) for shard in shards)
        self.locate = Locator((shard.header.path, shard.map) for shard in shards)
        self.tensors: Mapping[str, Tensor] = MappingProxyType(_merge_tensors(shards))

    def close(self) -> None:
        """Lets go of the tensors. The files are unmapped once no view of their data is left."""
        self.tensors = MappingProxyType({})

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _map_shard(path: Path) -> _Shard:
    try:
        # Asked before opening: to open a named pipe would block.
        if not path.is_file():
            raise ModelFileNotFound(f"{path}: there is no such file.")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise BadGguf(str(path), "the file is empty", offset=0)
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileNotFound(f"{path}: cannot be read: {error.strerror}.") from error
    return _Shard(parse_header(mapped, path), mapped)


def _map_siblings(first: Header) -> list[_Shard]:
    """Maps the other shards of a split model, in order; none if it is not split."""
    count = first.get_int(SPLIT_COUNT, default=1)
    if count <= 1:
        return []
    path = first.path
    if (index := first.get_int(SPLIT_NO)) != 0:
        raise BadGguf(
            str(path), f"it is shard {index + 1} of {count}; open the first, '-00001-of-...'"
        )
    name = _FIRST_SHARD_NAME.fullmatch(path.name)
    if name is None or int(name["count"]) != count:
        raise BadGguf(
            str(path),
            f"it is the first of {count} shards, so its name must end in "
            f"'-00001-of-{count:05}.gguf' for the others to be found",
        )
    shards = []
    for index in range(1, count):
        sibling = path.with_name(f"{name['prefix']}-{index + 1:05}-of-{count:05}.gguf")
        shard = _map_shard(sibling)
        found = shard.header.get_int(SPLIT_NO)
        of = shard.header.get_int(SPLIT_COUNT, default=count)
        if (found, of) != (index, count):
            raise BadGguf(
                str(sibling),
                f"it says it is shard {found + 1} of {of}, but by its name it is shard "
                f"{index + 1} of {count}",
            )
        shards.append(shard)
    expected = first.get_int(SPLIT_TENSORS_COUNT)
    total = len(first.tensors) + sum(len(shard.header.tensors) for shard in shards)
    if total != expected:
        raise BadGguf(str(path), f"the {count} shards hold {total} tensors, not {expected}")
    return shards


def _merge_tensors(shards: tuple[_Shard, ...]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for tensor in shard.tensors():
            if tensor.name in tensors:
                raise BadGguf(
                    str(shard.header.path),
                    f"the tensor {tensor.name!r} is in an earlier shard already",
                )
            tensors[tensor.name] = tensor
    return tensors
