"""Reads what an AMD code object says about its kernels.

The object is an ELF file with a note of type NT_AMDGPU_METADATA, a MessagePack map:
https://llvm.org/docs/AMDGPUUsage.html#code-object-v3-metadata and later sections.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_SHT_NOTE = 7
_NT_AMDGPU_METADATA = 32


def kernel_metadata(code: bytes) -> dict[str, dict[str, Any]]:
    """Returns the metadata map of each kernel in the code object, by the kernel's name.

    Raises:
        ValueError: not an AMD code object.
    """
    for owner, kind, body in _notes(code):
        if owner == b"AMDGPU" and kind == _NT_AMDGPU_METADATA:
            kernels = _unpack(memoryview(body))[0].get("amdhsa.kernels", [])
            return {kernel[".name"]: kernel for kernel in kernels}
    raise ValueError("not an AMD code object: it has no metadata note")


def _notes(elf: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_bytes, entries = struct.unpack_from("<HH", elf, 0x3A)
    for index in range(entries):
        header = struct.unpack_from("<IIQQQQIIQQ", elf, table + index * entry_bytes)
        kind, offset, size = header[1], header[4], header[5]
        if kind == _SHT_NOTE:
            yield from _notes_of_section(elf[offset : offset + size])


def _notes_of_section(section: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at + 12 <= len(section):
        owner_size, body_size, kind = struct.unpack_from("<III", section, at)
        owner_at = at + 12
        body_at = owner_at + _align4(owner_size)
        owner = section[owner_at : owner_at + owner_size].rstrip(b"\0")
        yield owner, kind, section[body_at : body_at + body_size]
        at = body_at + _align4(body_size)


def _align4(size: int) -> int:
    return (size + 3) & ~3


# First byte -> (struct format of the value or of the length that follows).
_SCALARS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"} | {
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q", 0xCA: ">f", 0xCB: ">d",
}  # fmt: skip
_STRINGS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_ARRAYS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpack(data: memoryview) -> tuple[Any, memoryview]:
    """Returns the MessagePack value at the start of `data`, and what follows it."""
    first, rest = data[0], data[1:]
    if first < 0x80:
        return first, rest
    if first >= 0xE0:
        return first - 0x100, rest
    if first in _CONSTANTS:
        return _CONSTANTS[first], rest
    if first in _SCALARS:
        return _number(_SCALARS[first], rest)
    if first < 0x90:
        return _unpack_map(first & 0x0F, rest)
    if first < 0xA0:
        return _unpack_array(first & 0x0F, rest)
    if first < 0xC0:
        return _unpack_string(first & 0x1F, rest)
    for formats, unpack in (
        (_STRINGS, _unpack_string),
        (_ARRAYS, _unpack_array),
        (_MAPS, _unpack_map),
    ):
        if first in formats:
            return unpack(*_number(formats[first], rest))
    raise ValueError(f"MessagePack type {first:#x} does not occur in code object metadata")


def _number(layout: str, data: memoryview) -> tuple[Any, memoryview]:
    (value,) = struct.unpack_from(layout, data)
    return value, data[struct.calcsize(layout) :]


def _unpack_string(size: int, data: memoryview) -> tuple[Any, memoryview]:
    return str(data[:size], "utf-8"), data[size:]


def _unpack_array(count: int, data: memoryview) -> tuple[Any, memoryview]:
    items = []
    for _ in range(count):
        item, data = _unpack(data)
        items.append(item)
    return items, data


def _unpack_map(count: int, data: memoryview) -> tuple[Any, memoryview]:
    pairs, rest = _unpack_array(2 * count, data)
    return dict(zip(pairs[::2], pairs[1::2], strict=True)), rest
