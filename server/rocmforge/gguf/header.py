"""The header of a GGUF file: version, metadata, tensor directory.

The format is described in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; where that
page is silent, this follows what llama.cpp (ggml/src/gguf.cpp) accepts. The numbers of the format
(type ids, key names) are those of the `gguf` package. Its own `GGUFReader` is not
used: it believes every count and offset in the file, and it takes seconds to open a file with a
vocabulary of 256k tokens.

A model file comes from a stranger. Every count, length and offset is compared, as a Python integer,
with the bytes that are really there before anything is allocated or read.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.formats import FORMATS, WeightFormat
from rocmforge.errors import BadGguf, UnsupportedTensor
from rocmforge.gguf.constants import ALIGNMENT, DEFAULT_ALIGNMENT, TENSOR_TYPES, ValueType
from rocmforge.gguf.cursor import Buffer, Cursor
from rocmforge.gguf.metadata import MetadataValue, TypedMetadata

MAGIC: Final = b"GGUF"
READABLE_VERSIONS: Final = (2, 3)  # 3 allows big-endian files; the layout is the same
MAX_DIMS: Final = 4
MAX_KEY_BYTES: Final = 65535
MAX_TENSOR_NAME_BYTES: Final = 64
MAX_DIM: Final = 2**63 - 1  # ggml keeps dimensions in int64

_MIN_KV_BYTES: Final = 8 + 1 + 4 + 1  # key length, a one-letter key, value type, a one-byte value
_MIN_TENSOR_BYTES: Final = 8 + 1 + 4 + 4 + 8  # name length, name, dimension count, type, offset

_DTYPES: Final[dict[ValueType, np.dtype[Any]]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor directory."""

    name: str
    shape: tuple[int, ...]  # NumPy order: the last axis is contiguous
    format: WeightFormat
    offset: int  # bytes from the start of the data section
    nbytes: int
    entry: int  # byte of the file at which this entry stands, for messages


class Header(TypedMetadata):
    """Everything that stands before the tensor data."""

    def __init__(
        self,
        path: Path,
        metadata: dict[str, MetadataValue],
        *,
        version: int,
        alignment: int,
        tensors: tuple[TensorInfo, ...],
        data_start: int,
    ) -> None:
        super().__init__(path, metadata)
        self.version = version
        self.alignment = alignment
        self.tensors = tensors
        self.data_start = data_start  # byte of the file at which the data section begins


def parse_header(buffer: Buffer, path: Path) -> Header:
    """Reads and checks everything before the tensor data, and that the data is there.

    Args:
        buffer: The whole file.
        path: Its name, for messages.

    Raises:
        BadGguf: Anything in the header is wrong; the message says what and at which byte.
        UnsupportedTensor: A tensor has a type that is unknown.
    """
    cursor = Cursor(buffer, path)
    version = _read_version(cursor)
    counts_at = cursor.position
    num_tensors = cursor.integer("<u8", "the number of tensors")
    num_keys = cursor.integer("<u8", "the number of metadata keys")
    if num_tensors * _MIN_TENSOR_BYTES + num_keys * _MIN_KV_BYTES > cursor.remaining:
        raise cursor.bad(
            f"{num_tensors} tensors and {num_keys} metadata keys are announced, but only "
            f"{cursor.remaining} bytes follow",
            counts_at,
        )
    metadata, alignment = _read_metadata(cursor, num_keys)
    tensors = _read_tensor_infos(cursor, num_tensors, alignment)
    data_start = -(-cursor.position // alignment) * alignment
    _check_placement(tensors, data_start, len(buffer), path)
    return Header(
        path,
        metadata,
        version=version,
        alignment=alignment,
        tensors=tensors,
        data_start=data_start,
    )


def _read_version(cursor: Cursor) -> int:
    at = cursor.advance(len(MAGIC), "the magic number")
    magic = cursor.buffer[at : at + len(MAGIC)]
    if magic != MAGIC:
        raise cursor.bad(
            f"it begins with {magic!r}, not {MAGIC!r}: is this the model itself, or a pointer to "
            "it, an error page or another format?",
            at,
        )
    at = cursor.position
    version = cursor.integer("<u4", "the version")
    if version in READABLE_VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in READABLE_VERSIONS:
        raise cursor.bad("the file is big-endian; only little-endian files can be read", at)
    known = " and ".join(map(str, READABLE_VERSIONS))
    raise cursor.bad(f"version {version} is unknown; versions {known} can be read", at)


def _read_metadata(cursor: Cursor, count: int) -> tuple[dict[str, MetadataValue], int]:
    """Reads all keys and values, and the alignment they ask for."""
    metadata: dict[str, MetadataValue] = {}
    alignment = DEFAULT_ALIGNMENT
    for index in range(count):
        at = cursor.position
        key = cursor.name(f"metadata key {index}", MAX_KEY_BYTES)
        what = _quote(key)
        if key in metadata:
            raise cursor.bad(f"the metadata key {what} occurs twice", at)
        at = cursor.position
        value_type = _read_value_type(cursor, what)
        value = _read_value(cursor, value_type, what)
        metadata[key] = value
        if key == ALIGNMENT:
            if value_type != ValueType.UINT32:
                raise cursor.bad(f"{what} is of type {value_type.name}, not UINT32", at)
            assert isinstance(value, int)
            if value.bit_count() != 1:
                raise cursor.bad(f"{what} is {value}, not a power of two", at)
            alignment = value
    return metadata, alignment


def _read_value_type(cursor: Cursor, what: str) -> ValueType:
    at = cursor.position
    number = cursor.integer("<u4", f"the type of {what}")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.bad(f"unknown value type {number} of {what}", at) from None


def _read_value(cursor: Cursor, value_type: ValueType, what: str) -> MetadataValue:
    if value_type == ValueType.STRING:
        return cursor.string(what).decode("utf-8", "surrogateescape")
    if value_type == ValueType.ARRAY:
        return _read_array(cursor, what)
    value: bool | int | float = cursor.numbers(_DTYPES[value_type], 1, what)[0].item()
    return value


def _read_array(cursor: Cursor, what: str) -> npt.NDArray[Any] | list[str]:
    at = cursor.position
    element_type = _read_value_type(cursor, f"the elements of {what}")
    count = cursor.integer("<u8", f"the length of {what}")
    if element_type == ValueType.STRING:
        return cursor.strings(count, what)
    if element_type == ValueType.ARRAY:
        # The format allows it, but llama.cpp refuses it as well and no writer produces it.
        raise cursor.bad(f"{what} is an array of arrays, which cannot be read", at)
    return cursor.numbers(_DTYPES[element_type], count, what)


def _read_tensor_infos(cursor: Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    for index in range(count):
        at = cursor.position
        tensor = _read_tensor_info(cursor, index)
        if tensor.name in tensors:
            raise cursor.bad(f"the tensor {_quote(tensor.name)} occurs twice", at)
        if tensor.offset % alignment:
            raise cursor.bad(
                f"the data of tensor {_quote(tensor.name)} is at offset {tensor.offset}, not a "
                f"multiple of the alignment {alignment}",
                at,
            )
        tensors[tensor.name] = tensor
    return tuple(tensors.values())


def _read_tensor_info(cursor: Cursor, index: int) -> TensorInfo:
    entry = cursor.position
    name = cursor.name(f"the name of tensor {index}", MAX_TENSOR_NAME_BYTES)
    what = f"tensor {_quote(name)}"
    num_dims = cursor.integer("<u4", f"the number of dimensions of {what}")
    if num_dims > MAX_DIMS:
        raise cursor.bad(f"{what} has {num_dims} dimensions, more than {MAX_DIMS}", entry)
    dims = cursor.numbers(np.dtype("<u8"), num_dims, f"the shape of {what}").tolist()
    shape = tuple(reversed(dims)) or (1,)  # to ggml, a tensor without dimensions has one element
    if not all(0 < dim <= MAX_DIM for dim in shape):
        raise cursor.bad(f"{what} has the shape {shape}: a dimension is zero or too large", entry)
    type_at = cursor.position
    type_number = cursor.integer("<u4", f"the type of {what}")
    try:
        format = FORMATS[TENSOR_TYPES[type_number]]
    except KeyError:
        raise UnsupportedTensor(
            name, f"its type {type_number} is unknown (byte {type_at} of {cursor.path})"
        ) from None
    if shape[-1] % format.block_size:
        raise cursor.bad(
            f"{what} has rows of {shape[-1]} elements, not a multiple of the {format.block_size} "
            f"in a block of {format}",
            entry,
        )
    return TensorInfo(
        name=name,
        shape=shape,
        format=format,
        offset=cursor.integer("<u8", f"the offset of {what}"),
        nbytes=format.row_bytes(prod(shape)),
        entry=entry,
    )


def _check_placement(
    tensors: tuple[TensorInfo, ...], data_start: int, file_size: int, path: Path
) -> None:
    """Checks that every tensor lies inside the file, and that no two share a byte."""
    end, previous = 0, ""
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise BadGguf(
                str(path),
                f"the data of tensors {_quote(previous)} and {_quote(tensor.name)} overlaps",
                offset=tensor.entry,
            )
        end, previous = tensor.offset + tensor.nbytes, tensor.name
        if data_start + end > file_size:
            raise BadGguf(
                str(path),
                f"the data of tensor {_quote(tensor.name)} should be the {tensor.nbytes} bytes at "
                f"{data_start + tensor.offset}, but the file ends at {file_size}: is the download "
                "complete?",
                offset=tensor.entry,
            )


def _quote(name: str) -> str:
    """Returns a name from the file, safe and short enough for a message."""
    return repr(name if len(name) <= 100 else name[:100] + "...")
