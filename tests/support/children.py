"""The processes that a process has started, found by what they run."""

from __future__ import annotations

from pathlib import Path

ENGINE = "rocmforge.engine.process"
RANK = "rocmforge_hip.parallel.worker"


def children(pid: int, module: str) -> list[int]:
    """The children of a process that run this module."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [int(child) for file in files for child in file.read_text().split()]
    lines = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in pids}
    return [child for child, line in lines.items() if module.encode() in line]
