"""The host as a device: its processor and its memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from rocmforge.backend.protocol import DeviceInfo

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def describe_host() -> DeviceInfo:
    """Returns the processor as a device, with the memory that a container's limits allow."""
    total, free = _memory()
    return DeviceInfo(
        index=0,
        name=f"{_processor_name()}, {len(os.sched_getaffinity(0))} cores",
        target=platform.machine(),
        memory_total=total,
        memory_free=free,
    )


def _processor_name() -> str:
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.machine()


def _memory() -> tuple[int, int]:
    """Returns the bytes in all, and those that can be had without swapping."""
    kibibytes = {}
    for line in _MEMINFO.read_text().splitlines():
        key, _, value = line.partition(":")
        kibibytes[key] = int(value.split()[0])
    total, free = kibibytes["MemTotal"] * 1024, kibibytes["MemAvailable"] * 1024
    limit = _cgroup_bytes("memory.max")
    if limit is not None and limit < total:
        used = _cgroup_bytes("memory.current") or 0
        return limit, min(free, max(limit - used, 0))
    return total, free


def _cgroup_bytes(name: str) -> int | None:
    """Returns a value of the control group (version 2), None where there is none or no limit."""
    path = _CGROUP / name
    if not path.is_file():
        return None
    text = path.read_text().strip()
    return int(text) if text.isdigit() else None
