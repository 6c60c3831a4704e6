"""The header of a safetensors file: names, types, shapes and places of its tensors.

The format: 8 bytes with the length of the header, the header as JSON, the data
(https://github.com/huggingface/safetensors#format). The `safetensors` package is not used: NumPy
has no bfloat16, so it gives such tensors through torch alone, and as copies. What is needed here is
where the bytes lie, so that they are mapped and read from the disk straight to a device.

Every number is compared with the bytes that are really there, as Python integers, before anything
is allocated. As the package asks, the tensors fill the data from its first byte to its last, none
over another and without a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from rocmforge.errors import BadFolder

MAX_HEADER_BYTES: Final = 32 << 20
"""Ours; the package takes 100 MB. A tensor takes about 100 bytes, a large model has 50,000."""
MAX_DIMS: Final = 8
_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"

BITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
        **dict.fromkeys(("F32", "I32", "U32"), 32),
        **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
        **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
        **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
        **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
        "F4": 4,
    }
)
"""Bits of an element of each type that the format has."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One entry of the header."""

    name: str
    dtype: str  # a key of BITS
    shape: tuple[int, ...]
    offset: int  # byte of the file
    nbytes: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=MAX_DIMS)
    ]
    data_offsets: tuple[
        Annotated[int, msgspec.Meta(ge=0)],
        Annotated[int, msgspec.Meta(ge=0)],
    ]


def parse_header(data: bytes | memoryview, size: int, path: Path) -> tuple[StoredTensor, ...]:
    """Reads and checks the header.

    Args:
        data: The first bytes of the file, or all.
        size: Bytes of the file.
        path: Its name, for messages.

    Returns:
        The tensors in the order of their data.

    Raises:
        BadFolder: Something in it is wrong.
    """
    length = _length(data, size, path)
    start = _LENGTH_BYTES + length
    try:
        raw = msgspec.json.decode(data[_LENGTH_BYTES:start], type=dict[str, msgspec.Raw])
        raw.pop(_METADATA, None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(path, f"its header is not what it should be: {error}") from error
    infos = sorted(
        (_info(name, entry, start, path) for name, entry in entries.items()),
        key=lambda info: (info.offset, info.nbytes),
    )
    position = start
    for info in infos:
        if info.offset != position:
            what = "overlaps the one before" if info.offset < position else "leaves a gap before it"
            raise _bad(path, f"the data of the tensor {info.name!r} {what}")
        position += info.nbytes
    if position != size:
        raise _bad(
            path, f"its tensors end at byte {position}, but it has {size}: it may be cut short"
        )
    return tuple(infos)


def header_bytes(data: bytes, size: int, path: Path) -> int:
    """Returns how many bytes of the file its header takes, given the first 8.

    Raises:
        BadFolder: It would be longer than the file or than what is read.
    """
    return _LENGTH_BYTES + _length(data, size, path)


def _length(data: bytes | memoryview, size: int, path: Path) -> int:
    if size < _LENGTH_BYTES:
        raise _bad(path, f"it has only {size} bytes")
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise _bad(
            path, f"its header has {length} bytes by its own account; {MAX_HEADER_BYTES} are read"
        )
    if _LENGTH_BYTES + length > size:
        raise _bad(path, f"its header has {length} bytes, but the file only {size}")
    return length


def _info(name: str, entry: _Entry, start: int, path: Path) -> StoredTensor:
    bits = BITS.get(entry.dtype)
    if bits is None:
        raise _bad(
            path,
            f"the tensor {name!r} has the type {entry.dtype!r}; known are {', '.join(BITS)}",
        )
    first, last = entry.data_offsets
    needed = prod(entry.shape) * bits
    if last - first != needed // 8 or needed % 8:
        raise _bad(
            path,
            f"the tensor {name!r} of type {entry.dtype} and shape {list(entry.shape)} has "
            f"{last - first} bytes, not {needed / 8:g}",
        )
    return StoredTensor(name, entry.dtype, entry.shape, start + first, last - first)


def _bad(path: Path, reason: str) -> BadFolder:
    return BadFolder(str(path), f"not a valid safetensors file: {reason}")
