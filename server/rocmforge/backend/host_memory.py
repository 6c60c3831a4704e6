"""The host's memory, as the kernel tells it, within the limits of a container."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")


def host_memory(root: Path = _ROOT) -> tuple[int, int]:
    """Returns the bytes in all, and those that can be had without swapping.

    Args:
        root: Of the file system that has `proc` and `sys`.
    """
    kibibytes = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        kibibytes[key] = int(value.split()[0])
    total, free = kibibytes["MemTotal"] * 1024, kibibytes["MemAvailable"] * 1024
    group = root / "sys/fs/cgroup"
    limit = _number(group / "memory.max")
    if limit is not None and limit < total:
        used = (_number(group / "memory.current") or 0) - _reclaimable(group / "memory.stat")
        return limit, min(free, max(limit - used, 0))
    return total, free


def _number(path: Path) -> int | None:
    """Returns a value of the control group (version 2), None where there is none or no limit."""
    text = path.read_text().strip() if path.is_file() else ""
    return int(text) if text.isdigit() else None


def _reclaimable(path: Path) -> int:
    """Returns the bytes of files that a control group counts and gives up when it needs them."""
    if not path.is_file():
        return 0
    rows = dict(line.split() for line in path.read_text().splitlines())
    return int(rows.get("inactive_file", 0))
