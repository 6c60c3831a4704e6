"""Power, energy and heat of a GPU, and what holds them down.

Source: https://docs.kernel.org/gpu/amdgpu/thermal.html and the kernel's hwmon sysfs interface.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rocmforge.sensors.files import list_folder, read_number, read_text

_MICRO: Final = 1e-6
_MILLI: Final = 1e-3
_MONITORS: Final = 8
_SENSORS: Final = range(1, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """One sensor, in degrees Celsius."""

    now: float
    critical: float | None  # above which the device slows down, and then shuts down


def power_w(device: Path) -> float | None:
    """Returns the watts that a device draws, averaged by its firmware where it does that.

    Args:
        device: its folder in sysfs.

    Returns:
        None if it does not tell, as when it sleeps.
    """
    return _first(device, "power1_average", "power1_input")


def power_cap_w(device: Path) -> float | None:
    """Returns the watts that its firmware keeps a device below."""
    return _first(device, "power1_cap")


def default_cap_w(device: Path) -> float | None:
    """Returns the cap that a device has if nobody sets another."""
    return _first(device, "power1_cap_default")


def energy_j(device: Path) -> float | None:
    """Returns the joules used since the driver was loaded; None if they are not counted."""
    return _first(device, "energy1_input")


def temperatures(device: Path) -> Mapping[str, Temperature]:
    """Returns its sensors by the driver's names: edge, junction, mem."""
    found = {}
    for monitor in _monitors(device):
        for number in _SENSORS:
            now = read_number(monitor / f"temp{number}_input")
            if now is None:
                continue
            critical = read_number(monitor / f"temp{number}_crit")
            name = read_text(monitor / f"temp{number}_label", 64) or f"temp{number}"
            found[name] = Temperature(
                now=now * _MILLI, critical=critical * _MILLI if critical else None
            )
    return MappingProxyType(found)


def _monitors(device: Path) -> Iterator[Path]:
    yield from list_folder(device / "hwmon", _MONITORS)


def _first(device: Path, *names: str) -> float | None:
    for name in names:
        for monitor in _monitors(device):
            number = read_number(monitor / name)
            if number is not None:
                return number * _MICRO
    return None
