"""Folders that are made once, whoever wants them, and that appear complete or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_A_DAY = 24 * 3600


def make(directory: Path, fill: Callable[[Path], None]) -> None:
    """Has `fill` write a directory unless it exists; whoever else wants it waits meanwhile.

    Several processes test at once, and each would compile the same kernels. One that exists is
    dated anew, so that its age tells for how long nobody has wanted it.
    """
    if _is_there(directory):
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.with_name(f".{directory.name}.lock")):
        if not directory.exists():
            with _Scratch(directory) as scratch:
                fill(scratch)


def _is_there(directory: Path) -> bool:
    try:
        if time.time() - directory.stat().st_mtime > _A_DAY:
            os.utime(directory)
    except FileNotFoundError:
        return False
    return True


class _Scratch:
    """A temporary directory that becomes `directory` if its block succeeds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._scratch = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".new-"))

    def __enter__(self) -> Path:
        return self._scratch

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._scratch.rename(self._directory)
        shutil.rmtree(self._scratch, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock, a file that stays, against other processes and threads."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file in one step, and not at all when it has that content already."""
    if path.exists() and path.read_bytes() == content:
        return
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)
