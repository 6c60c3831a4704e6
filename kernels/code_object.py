"""Reads what an AMD code object says about its kernels.

The object is an ELF file with a note of type NT_AMDGPU_METADATA, a MessagePack map:
https://llvm.org/docs/AMDGPUUsage.html#code-object-v3-metadata and later sections.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

_SHT_NOTE = 7
_NT_AMDGPU_METADATA = 32


def kernel_metadata(code: bytes) -> dict[str, dict[str, Any]]:
    """Returns the metadata map of each kernel in the code object, by the kernel's name.

    Raises:
        ValueError: not an AMD code object.
    """
    for owner, kind, body in _notes(code):
        if owner == b"AMDGPU" and kind == _NT_AMDGPU_METADATA:
            kernels = msgspec.msgpack.decode(body).get("amdhsa.kernels", [])
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
