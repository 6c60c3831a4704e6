"""Small files of the kernel, read without trust: never much of one, never waiting, often absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_MOST: Final = 16384  # bytes of a file; those of sysfs have at most a page


def read_bytes(file: Path, most: int = _MOST) -> bytes | None:
    """Returns the beginning of a file, `most` bytes at most; None if it cannot be read now."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        return os.read(descriptor, most)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_text(file: Path, most: int = _MOST) -> str | None:
    """Returns the beginning of a file as text, stripped; None if it cannot be read now."""
    data = read_bytes(file, most)
    return None if data is None else data.decode("utf-8", errors="replace").strip()


def read_number(file: Path) -> int | None:
    """Returns the whole number that a file holds; None if there is none."""
    text = read_text(file, 64)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def list_folder(folder: Path, most: int) -> list[Path]:
    """Returns what a folder holds, sorted, no more than `most`; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(most), strict=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]
