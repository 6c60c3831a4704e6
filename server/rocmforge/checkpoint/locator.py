"""From bytes of a mapped file to their place in it, to be read there."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class FilePart:
    """Consecutive bytes of a file, from this offset on."""

    path: Path
    offset: int


class Locator:
    """Finds the file that bytes lie in. Keeps no file mapped.

    Args:
        files: those that are mapped as a whole, each with its map.
    """

    def __init__(self, files: Iterable[tuple[Path, mmap.mmap]]) -> None:
        self._spans = tuple(
            (path, np.frombuffer(mapped, np.uint8).ctypes.data, len(mapped))
            for path, mapped in files
        )

    def __call__(self, data: npt.NDArray[np.uint8]) -> FilePart | None:
        """Returns where the bytes begin; None if they are not consecutive bytes of one file."""
        if not data.flags.c_contiguous:
            return None
        for path, start, size in self._spans:
            offset = data.ctypes.data - start
            if 0 <= offset <= size - data.nbytes:
                return FilePart(path, offset)
        return None
