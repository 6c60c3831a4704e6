"""Reading the primitives of GGUF: numbers, arrays of them, and strings, never past the end."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rocmforge.errors import BadGguf

Buffer: TypeAlias = bytes | mmap.mmap

MAX_HEADER_BYTES: Final = 128 << 20
"""Ours, not the format's: the largest headers known (vocabularies of 260k tokens with their
merges) take 16 MiB, and the objects made from a header take several times its size."""


class Cursor:
    """A position in the header of a file that moves forward only, and never past the end.

    `what` is what is being read, in the words of the error that is raised if it does not fit.
    """

    def __init__(self, buffer: Buffer, path: Path) -> None:
        self.buffer = buffer
        self.position = 0
        self.path = path
        self._end = min(len(buffer), MAX_HEADER_BYTES)

    @property
    def remaining(self) -> int:
        """Bytes ahead that may belong to the header."""
        return self._end - self.position

    def bad(self, reason: str, offset: int) -> BadGguf:
        """Returns the error for what stands at `offset`."""
        return BadGguf(str(self.path), reason, offset=offset)

    def advance(self, count: int, what: str) -> int:
        """Steps over `count` bytes and returns where they begin."""
        if count > self.remaining:
            raise self._too_long(count, what)
        start = self.position
        self.position += count
        return start

    def numbers(self, dtype: np.dtype[Any], count: int, what: str) -> npt.NDArray[Any]:
        """Reads `count` numbers, copied out of the file so that they do not keep it mapped."""
        start = self.advance(count * dtype.itemsize, what)
        if dtype.kind == "b":
            return self._bools(start, count, what)
        values = np.frombuffer(self.buffer, dtype, count, start).copy()
        values.flags.writeable = False
        return values

    def _bools(self, start: int, count: int, what: str) -> npt.NDArray[np.bool_]:
        stored = np.frombuffer(self.buffer, np.uint8, count, start)
        if (stored > 1).any():
            index = int((stored > 1).argmax())
            raise self.bad(f"{what} holds {stored[index]}, neither 0 nor 1", start + index)
        values = stored.astype(np.bool_)
        values.flags.writeable = False
        return values

    def integer(self, dtype: str, what: str) -> int:
        """Reads one integer."""
        return int(self.numbers(np.dtype(dtype), 1, what)[0])

    def string(self, what: str) -> bytes:
        """Reads a string: its length as uint64, then its bytes."""
        start = self.position
        length = self.integer("<u8", f"the length of {what}")
        if length > self.remaining:
            self.position = start
            raise self._too_long(length, what)
        start = self.advance(length, what)
        return self.buffer[start : start + length]

    def name(self, what: str, max_bytes: int) -> str:
        """Reads a string that identifies something: not empty, valid UTF-8, bounded."""
        start = self.position
        raw = self.string(what)
        if not 0 < len(raw) <= max_bytes:
            raise self.bad(f"{what} is {len(raw)} bytes long, not 1 to {max_bytes}", start)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.bad(f"{what}, {raw[:80]!r}, is not UTF-8", start) from None

    def strings(self, count: int, what: str) -> list[str]:
        """Reads `count` strings, in a loop without calls: vocabularies have 256k of them."""
        if count * 8 > self.remaining:
            raise self._too_long(count * 8, what)
        buffer, position, end = self.buffer, self.position, self._end
        values = []
        for index in range(count):
            start = position + 8
            length = int.from_bytes(buffer[position:start], "little")
            if length > end - start:
                self.position = position
                raise self._too_long(length, f"string {index} of {what}")
            position = start + length
            values.append(buffer[start:position].decode("utf-8", "surrogateescape"))
        self.position = position
        return values

    def _too_long(self, count: int, what: str) -> BadGguf:
        limit = "" if self._end == len(self.buffer) else f" of a header's {MAX_HEADER_BYTES}"
        return self.bad(
            f"{what} takes {count} bytes, but only {max(self.remaining, 0)}{limit} are left",
            self.position,
        )
