"""Files that other processes see whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    """Writes a file, and its folder if need be; several processes may write it at the same time.

    Raises:
        OSError: It cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(file)
