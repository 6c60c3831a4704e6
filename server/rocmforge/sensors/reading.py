"""All that a GPU's files say at one moment.

Sources: https://docs.kernel.org/gpu/amdgpu/driver-misc.html (memory), thermal.html (power, busy),
ras.html (errors of memory and other blocks); Documentation/ABI/testing/sysfs-devices-power.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rocmforge.sensors.files import list_folder, read_bytes, read_number, read_text
from rocmforge.sensors.memory import others_bytes
from rocmforge.sensors.power import (
    Temperature,
    default_cap_w,
    energy_j,
    power_cap_w,
    power_w,
    temperatures,
)
from rocmforge.sensors.throttling import Throttle, decode

_MOST_BLOCKS: Final = 64
_COUNT: Final = re.compile(r"^(ue|ce): (\d{1,18})$", re.MULTILINE)
_GIB: Final = 1 << 30
_MANY_BYTES: Final = 1 << 30  # the driver itself takes hundreds of megabytes
_NEAR_CRITICAL: Final = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounts:
    """Errors since the driver was loaded, over all blocks of a device."""

    corrected: int
    uncorrected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """A device at one moment; None where it does not tell. Watts, joules, degrees Celsius."""

    device: str  # PCI address
    at: float  # seconds since 1970
    is_asleep: bool = False  # then nothing else was looked at: that would wake it
    power_w: float | None = None
    power_cap_w: float | None = None
    default_cap_w: float | None = None
    energy_j: float | None = None
    temperatures: Mapping[str, Temperature] = field(default_factory=dict)
    busy: float | None = None  # share of its time, 0..1
    memory_total: int | None = None
    memory_used: int | None = None
    memory_of_others: int | None = None  # used by processes that are not the server's
    throttled_by: frozenset[Throttle] | None = None
    errors: ErrorCounts | None = None


def read_device(
    root: Path, device: str, ours: Collection[int] = (), errors: ErrorCounts | None = None
) -> DeviceReading:
    """Reads a device's files; what is not there is None.

    Args:
        root: of the file system that has `proc` and `sys`.
        device: its PCI address.
        ours: process ids of the server: their memory is not others'.
        errors: its counts, if they were read lately; else `read_errors` is asked.
    """
    folder = root / "sys/bus/pci/devices" / device
    now = time.time()
    if read_text(folder / "power/runtime_status", 64) == "suspended":
        return DeviceReading(device=device, at=now, is_asleep=True)
    busy, used = (
        read_number(folder / "gpu_busy_percent"),
        read_number(folder / "mem_info_vram_used"),
    )
    return DeviceReading(
        device=device,
        at=now,
        power_w=power_w(folder),
        power_cap_w=power_cap_w(folder),
        default_cap_w=default_cap_w(folder),
        energy_j=energy_j(folder),
        temperatures=temperatures(folder),
        busy=None if busy is None else busy / 100,
        memory_total=read_number(folder / "mem_info_vram_total"),
        memory_used=used,
        memory_of_others=None if used is None else others_bytes(root, device, used, ours),
        throttled_by=decode(read_bytes(folder / "gpu_metrics") or b""),
        errors=errors or read_errors(folder),
    )


def read_errors(folder: Path) -> ErrorCounts | None:
    """Returns the sum of the counts of all blocks of a device; None if it counts none.

    The driver asks the hardware for each of them, so this is not for every second.
    """
    files = [f for f in list_folder(folder / "ras", _MOST_BLOCKS) if f.name.endswith("_err_count")]
    found = [match for file in files for match in _COUNT.findall(read_text(file) or "")]
    if not found:
        return None
    return ErrorCounts(
        corrected=sum(int(number) for kind, number in found if kind == "ce"),
        uncorrected=sum(int(number) for kind, number in found if kind == "ue"),
    )


def has_core_dump(root: Path, device: str) -> bool:
    """Returns whether the driver has kept the state of a device that it reset minutes ago."""
    return (root / "sys/bus/pci/devices" / device / "devcoredump").exists()


def remarks(reading: DeviceReading) -> list[str]:
    """Returns sentences about what is not as it might be, for people."""
    said = []
    hottest = max(reading.temperatures.values(), key=lambda t: t.now, default=None)
    for reason in sorted(reading.throttled_by or ()):
        said.append(f"Its clocks are held down now: {_why(reason, reading, hottest)}.")
    if Throttle.TEMPERATURE not in (reading.throttled_by or ()):
        said += [
            f"Its sensor {name} is at {one.now:.0f} °C of {one.critical:.0f} °C."
            for name, one in reading.temperatures.items()
            if one.critical and one.now >= _NEAR_CRITICAL * one.critical
        ]
    cap, default = reading.power_cap_w, reading.default_cap_w
    if cap is not None and default is not None and round(cap) < round(default):
        said.append(f"Its power cap is {cap:.0f} W, the default {default:.0f} W.")
    if reading.memory_of_others is not None and reading.memory_of_others >= _MANY_BYTES:
        size = f"{reading.memory_of_others / _GIB:.1f} GiB"
        said.append(f"Other processes, the desktop or the driver hold {size} of its memory.")
    if reading.errors is not None and reading.errors.uncorrected:
        said.append(
            f"It has counted {reading.errors.uncorrected} errors that ECC could not correct."
        )
    return said


def _why(reason: Throttle, reading: DeviceReading, hottest: Temperature | None) -> str:
    match reason:
        case Throttle.POWER if reading.power_cap_w is not None:
            return f"it is at its power limit (cap {reading.power_cap_w:.0f} W)"
        case Throttle.POWER:
            return "it is at its power limit"
        case Throttle.TEMPERATURE if hottest is not None:
            return f"it is too hot ({hottest.now:.0f} °C)"
        case Throttle.TEMPERATURE:
            return "it is too hot"
        case Throttle.CURRENT:
            return "a limit of current is reached"
        case _:
            return "another limit is reached"
