"""The host as a device: its processor and its memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from rocmforge.backend.host_memory import host_memory
from rocmforge.backend.protocol import DeviceInfo

_CPUINFO = Path("/proc/cpuinfo")


def describe_host() -> DeviceInfo:
    """Returns the processor as a device, with the memory that a container's limits allow."""
    total, free = host_memory()
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
