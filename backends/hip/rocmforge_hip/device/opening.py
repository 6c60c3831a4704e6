"""A device that is open: what a model holds of it, and how that is given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rocmforge_hip.device.discovery import FoundDevice
from rocmforge_hip.device.driver import Driver, HipError
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import Memory


@dataclass(frozen=True, slots=True)
class Device:
    """The parts of a device that a loaded model holds; freed from the last to the first."""

    driver: Driver
    stream: int
    library: KernelLibrary
    memory: Memory


def release(device: Device) -> None:
    """Gives back everything a model holds of a device that has nothing to do."""
    for buffer in device.memory.release():
        buffer.free()
    device.library.close()
    device.driver.destroy_stream(device.stream)


@contextmanager
def opened(found: FoundDevice) -> Iterator[Device]:
    """Opens a device for a model, whose runner then owns it; gives it back if loading fails."""
    device = open_device(found)
    try:
        yield device
    except BaseException:
        # One that has failed answers every call with its error, which would hide what happened.
        with suppress(HipError):
            device.driver.synchronize_stream(device.stream)
            release(device)
        raise


def open_device(found: FoundDevice) -> Device:
    """Opens the device of the calling thread from now on; `release` gives it back."""
    driver = Driver(found.properties.index)
    stream = driver.create_stream()
    library = KernelLibrary(driver, stream, found.properties.target)
    return Device(driver, stream, library, Memory(driver))
