"""Power and energy of AMD GPUs, as the kernel's sensors tell them.

Source: https://docs.kernel.org/gpu/amdgpu/thermal.html and the kernel's hwmon sysfs interface.
"""

from __future__ import annotations

from pathlib import Path

_MICRO = 1e-6


def power_w(device: Path) -> float | None:
    """Watts that a device draws, averaged by its firmware where it does that.

    Args:
        device: its folder in sysfs.

    Returns:
        None if it does not tell, as when it sleeps.
    """
    return _first(device, "power1_average", "power1_input")


def energy_j(device: Path) -> float | None:
    """Joules that a device has used since its driver was loaded; None if it does not count them."""
    return _first(device, "energy1_input")


def _first(device: Path, *names: str) -> float | None:
    for name in names:
        for file in sorted(device.glob(f"hwmon/hwmon*/{name}")):
            try:
                return int(file.read_text(encoding="ascii")) * _MICRO
            except (OSError, ValueError):
                continue
    return None
