"""The processes that a process has started, found by what they run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ENGINE = "rocmforge.engine.process"
RANK = "rocmforge_hip.parallel.worker"


def children(pid: int, module: str) -> list[int]:
    """The children of a process that run this module; threads and children may end meanwhile."""
    pids: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            pids += map(int, file.read_text().split())
    return [child for child in pids if module.encode() in _command_line(child)]


def _command_line(pid: int) -> bytes:
    """Nothing of a process that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
