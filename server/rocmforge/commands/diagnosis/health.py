"""Findings about what has happened to GPUs, and what holds them back now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rocmforge.commands.diagnosis.finding import Finding, Level
from rocmforge.sensors.files import read_text
from rocmforge.sensors.kernel_log import KernelEvent, KernelRecord, read_all
from rocmforge.sensors.memory import MemoryHolder, all_holders
from rocmforge.sensors.reading import DeviceReading, has_core_dump, read_device
from rocmforge.sensors.throttling import Throttle

_MOST_RECORDS: Final = 100_000  # of the kernel's log
_GIB: Final = 1 << 30
_NAMED: Final = 4
_LEAST_HELD: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHistory:
    """A GPU in use by amdgpu: how it is now, and what the kernel said of it."""

    reading: DeviceReading
    has_core_dump: bool
    records: tuple[KernelRecord, ...]
    holders: tuple[MemoryHolder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All GPUs, and the log that was read for them."""

    devices: tuple[DeviceHistory, ...]
    log_problem: str | None  # why the kernel's log could not be read
    uptime_s: float


def read_history(root: Path, devices: tuple[str, ...]) -> History:
    """Reads what there is about these devices, by PCI address, below a root folder."""
    records, problem = read_all(root / "dev/kmsg", _MOST_RECORDS)
    holders = all_holders(root)
    only = devices[0] if len(devices) == 1 else None
    return History(
        devices=tuple(
            DeviceHistory(
                reading=read_device(root, device),
                has_core_dump=has_core_dump(root, device),
                records=tuple(r for r in records if (r.device or only) == device),
                holders=tuple(h for h in holders if h.device == device),
            )
            for device in devices
        ),
        log_problem=problem,
        uptime_s=_uptime_s(root),
    )


def _uptime_s(root: Path) -> float:
    text = read_text(root / "proc/uptime", 64) or ""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0


@dataclass(frozen=True, slots=True)
class _Meaning:
    level: Level
    what: str
    repair: str


_MEANINGS: Final[Mapping[KernelEvent, _Meaning]] = MappingProxyType(
    {
        KernelEvent.LOST: _Meaning(
            Level.ERROR,
            "fell off the bus",
            "restart the machine; if it comes back: slot, riser, power supply, PCIe power saving",
        ),
        KernelEvent.RESET_FAILED: _Meaning(
            Level.ERROR, "could not be reset", "restart the machine; the device stays unusable"
        ),
        KernelEvent.MEMORY_ERROR: _Meaning(
            Level.WARNING,
            "had errors of memory that ECC could not correct",
            "restart the machine, which retires bad pages; if they come back, replace the device",
        ),
        KernelEvent.OVERHEATED: _Meaning(
            Level.WARNING, "became too hot", "see to fans, dust and air, or lower the power cap"
        ),
        KernelEvent.RESET: _Meaning(
            Level.WARNING,
            "was reset",
            "once: nothing, servers replace their engines on it; again: power, heat, the newest "
            "kernel and linux-firmware",
        ),
        KernelEvent.TIMEOUT: _Meaning(
            Level.WARNING,
            "did not finish its work in time",
            "sudo dmesg | grep -A3 timeout  # the line after it names the process",
        ),
        KernelEvent.PAGE_FAULT: _Meaning(
            Level.WARNING,
            "touched memory that is not there",
            "rocmforge verify MODEL  # a mistake in the program, please report it; or a fault",
        ),
    }
)
"""The events that are told, the worst first; that a device has recovered is no news of its own."""


def find_troubles(history: History) -> Iterator[Finding]:
    """Checks what has happened to each device, and what is not as it might be now."""
    for device in history.devices:
        yield from _past(device, history.uptime_s)
        yield from _now(device)
    if history.log_problem is not None and history.devices:
        yield Finding(
            check="kernel log",
            level=Level.OK,
            message=f"The kernel's log cannot be read ({history.log_problem}), so resets and "
            "errors of devices in the past are not known here. As root, or with CAP_SYSLOG and, in "
            "a container, --device /dev/kmsg, they are.",
        )


def _past(device: DeviceHistory, uptime_s: float) -> Iterator[Finding]:
    address = device.reading.device
    for event, meaning in _MEANINGS.items():
        records = [record for record in device.records if record.event is event]
        if not records:
            continue
        last = records[-1]
        ago = _duration(max(uptime_s - last.seconds, 0.0))
        times = "once" if len(records) == 1 else f"{len(records)} times"
        recovered = any(
            r.event is KernelEvent.RECOVERED and r.seconds >= last.seconds for r in device.records
        )
        end = " It has recovered." if recovered and event is KernelEvent.RESET else ""
        yield Finding(
            check="events",
            level=meaning.level,
            message=f"GPU {address} {meaning.what} ({times} since the machine was started, "
            f'{ago} ago): "{last.text}".{end}',
            repair=meaning.repair,
        )
    if device.has_core_dump:
        yield Finding(
            check="events",
            level=Level.WARNING,
            message=f"The driver has kept the state of GPU {address}, which it reset in the last "
            "minutes.",
            repair=f"sudo cp /sys/bus/pci/devices/{address}/devcoredump/data gpu.dump  "
            "# soon; for a report to AMD",
        )


def _now(device: DeviceHistory) -> Iterator[Finding]:
    reading = device.reading
    address, folder = reading.device, f"/sys/bus/pci/devices/{reading.device}"
    hottest = max((t.now for t in reading.temperatures.values()), default=None)
    if Throttle.TEMPERATURE in (reading.throttled_by or ()):
        heat = "" if hottest is None else f" ({hottest:.0f} °C)"
        yield _warning(
            "throttling",
            f"GPU {address} is slowed down by its temperature{heat}.",
            "see to fans, dust and air, or lower its power cap",
        )
    cap, default = reading.power_cap_w, reading.default_cap_w
    if cap is not None and default is not None and round(cap) < round(default):
        yield _warning(
            "power cap",
            f"GPU {address} may draw {cap:.0f} W, by default it may {default:.0f} W: it is slower "
            "under load.",
            f"echo {default * 1e6:.0f} | sudo tee {folder}/hwmon/hwmon*/power1_cap  "
            "# unless it is meant",
        )
    if reading.errors is not None and reading.errors.uncorrected:
        yield _warning(
            "memory errors",
            f"GPU {address} has counted {reading.errors.uncorrected} errors that ECC could not "
            f"correct, and {reading.errors.corrected} that it could.",
            _MEANINGS[KernelEvent.MEMORY_ERROR].repair,
        )
    held = [holder for holder in device.holders if holder.nbytes >= _LEAST_HELD]
    if held:
        named = ", ".join(
            f"{holder.name or 'outside this container'} (process {holder.pid}) "
            f"{holder.nbytes / _GIB:.1f} GiB"
            for holder in held[:_NAMED]
        )
        yield Finding(
            check="memory",
            level=Level.OK,
            message=f"Memory of GPU {address} is held by {named}.",
        )


def _warning(check: str, message: str, repair: str) -> Finding:
    return Finding(check=check, level=Level.WARNING, message=message, repair=repair)


def _duration(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count = int(seconds // size)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"
