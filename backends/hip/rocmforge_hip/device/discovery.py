"""Finding devices and choosing one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmforge.backend.protocol import DeviceInfo
from rocmforge.errors import ConfigurationError
from rocmforge_hip.device.driver import DeviceProperties, Driver, list_devices
from rocmforge_hip.device.platform import Platform

_PCI_DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device and its memory at the time of looking."""

    properties: DeviceProperties
    info: DeviceInfo


def find_devices(platform: Platform) -> tuple[FoundDevice, ...]:
    """Returns the devices of a platform, discrete ones first, each group in HIP's order.

    Raises:
        HipUnavailable: There is no HIP library.
        HipError: A call failed.
    """
    found = [_look(each) for each in list_devices() if platform.drives(each.target)]
    return tuple(sorted(found, key=lambda device: device.properties.is_integrated))


def choose_device(devices: Sequence[FoundDevice], wanted: str | None) -> FoundDevice:
    """Returns the device with this index, PCI id (as lspci writes it), name or part of a name.

    Without any of those the first.

    Raises:
        ConfigurationError: None or several match.
    """
    if not devices:
        raise ConfigurationError("The HIP backend found no device.")
    if wanted is None:
        return devices[0]
    matches = [device for device in devices if wanted in _names(device)]
    if not matches and not wanted.isdigit():
        matches = [device for device in devices if wanted.lower() in device.info.name.lower()]
    if len(matches) == 1:
        return matches[0]
    problem = "stands for several devices" if matches else "is not a device"
    raise ConfigurationError(f"{wanted!r} {problem}. There are: {list_names(devices)}.")


def list_names(devices: Sequence[FoundDevice]) -> str:
    """Returns index, name and PCI id of each, for people."""
    return ", ".join(
        f"{d.properties.index} ({d.info.name}, {d.properties.pci_id})" for d in devices
    )


def _names(device: FoundDevice) -> tuple[str, ...]:
    """Returns what names one device exactly; lspci leaves out the PCI domain 0."""
    pci_id = device.properties.pci_id
    ids = (pci_id, pci_id.upper(), pci_id.removeprefix("0000:"))
    return (str(device.properties.index), device.info.name, *ids)


def choose_devices(
    devices: Sequence[FoundDevice], wanted: str | None, count: int
) -> tuple[FoundDevice, ...]:
    """Returns so many devices: those of a list, each as `choose_device` takes it, or the first.

    Raises:
        ConfigurationError: There are too few, or they are not of one kind.
    """
    if count == 1:
        return (choose_device(devices, wanted),)
    names = [str(d.properties.index) for d in devices[:count]]
    if wanted is not None:
        names = [name.strip() for name in wanted.split(",")]
    if len(names) != count:
        found = f"--device names {len(names)}" if wanted is not None else f"there are {len(names)}"
        raise ConfigurationError(f"--tensor-parallel {count} needs as many devices, but {found}.")
    chosen = tuple(choose_device(devices, name) for name in names)
    if len({device.properties.index for device in chosen}) < count:
        raise ConfigurationError(f"--device {wanted} names a device twice.")
    kinds = {_kind(device) for device in chosen}
    if len(kinds) > 1:
        raise ConfigurationError(
            f"--tensor-parallel needs equal devices, as each does the same work, but these are "
            f"not: {'; '.join(f'{d.properties.index}: {_kind(d)}' for d in chosen)}. "
            "Choose equal ones with --device."
        )
    return chosen


def _kind(device: FoundDevice) -> str:
    info = device.info
    return f"{info.name}, {info.target}, {info.memory_total / 2**30:.1f} GiB"


def _look(properties: DeviceProperties) -> FoundDevice:
    free, total = Driver(properties.index).memory_info()
    shared_free, shared_total = _shared_memory(properties) if properties.is_integrated else (0, 0)
    info = DeviceInfo(
        index=properties.index,
        name=properties.name,
        target=properties.target,
        memory_total=max(total, shared_total),
        memory_free=max(free, shared_free),
    )
    return FoundDevice(properties, info)


def _shared_memory(properties: DeviceProperties) -> tuple[int, int]:
    """Returns free and total bytes of an APU: its carve-out and what it may borrow (GTT).

    HIP reports the carve-out alone with some drivers. The files are those of the amdgpu driver:
    https://docs.kernel.org/gpu/amdgpu/driver-misc.html
    """
    folder = _PCI_DEVICES / properties.pci_id
    files = {
        name: folder / f"mem_info_{name}"
        for name in ("vram_total", "gtt_total", "vram_used", "gtt_used")
    }
    if not all(file.is_file() for file in files.values()):
        return 0, 0
    sizes = {name: int(file.read_text()) for name, file in files.items()}
    total = sizes["vram_total"] + sizes["gtt_total"]
    return total - sizes["vram_used"] - sizes["gtt_used"], total
