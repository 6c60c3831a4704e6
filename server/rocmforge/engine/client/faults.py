"""The faults of an engine process: what the kernel knows of one, and what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from rocmforge.errors import Fault
from rocmforge.sensors.kernel_log import KernelEvent

ADVICE: Final[Mapping[Fault, str]] = MappingProxyType(
    {
        Fault.HANG: (
            "A kernel does not end, or the driver waits: see `rocmforge doctor`; if it happens on "
            "one device only, reset it or restart the machine."
        ),
        Fault.RESET: (
            "The driver resets the device: `rocmforge doctor` and `sudo dmesg | grep amdgpu` have "
            "its reasons; see to power, heat and the newest driver."
        ),
        Fault.LOST: (
            "The device or its driver does not answer: `rocmforge doctor`; if it is missing there, "
            "restart the machine, and see to slot and power."
        ),
        Fault.MEMORY: (
            "The device's memory has errors that cannot be corrected: restart the machine, which "
            "retires bad pages; if they come back, replace the device."
        ),
        Fault.ADDRESS: (
            "A kernel read memory that is not there: `rocmforge verify MODEL` tells a mistake in "
            "the program, which please report, from a damaged device."
        ),
        Fault.KERNEL: (
            "A kernel failed: `rocmforge verify MODEL` tells a mistake in the program, which "
            "please report, from a damaged device."
        ),
        Fault.CRASH: (
            "The process ended without a word: the kernel may have killed it for memory "
            "(`sudo dmesg`), or a library of the driver crashed (`rocmforge doctor`)."
        ),
        Fault.ERROR: "The server's log has more.",
    }
)

_BY_EVENT: Final[Mapping[KernelEvent, Fault]] = MappingProxyType(
    {
        KernelEvent.MEMORY_ERROR: Fault.MEMORY,
        KernelEvent.LOST: Fault.LOST,
        KernelEvent.RESET_FAILED: Fault.LOST,
        KernelEvent.RESET: Fault.RESET,
        KernelEvent.PAGE_FAULT: Fault.ADDRESS,
        KernelEvent.TIMEOUT: Fault.HANG,
    }
)
"""The faults that the kernel's words stand for, the surest first."""
ENDED: Final[Mapping[KernelEvent, str]] = MappingProxyType(
    {
        KernelEvent.RESET: "was reset",
        KernelEvent.LOST: "fell off the bus",
        KernelEvent.RESET_FAILED: "could not be reset",
    }
)
"""What became of a device, after which nothing on it is to be trusted."""
_URGENT: Final = frozenset({Fault.LOST, Fault.MEMORY})
_VAGUE: Final = frozenset({Fault.CRASH, Fault.LOST, Fault.HANG})


def fault_of(event: KernelEvent) -> Fault:
    """Returns the fault of a process whose device had this happen to it; one of `ENDED`."""
    return _BY_EVENT[event]


def advice(fault: Fault, failures: int) -> str:
    """Returns what to do about so many faults in a row, as the end of a message.

    It is "" if there is nothing to do: most devices go on well after one hang or reset.
    """
    is_called_for = fault in _URGENT or (failures > 1 and fault is not Fault.ERROR)
    return f" {ADVICE[fault]}" if is_called_for else ""


def refine(fault: Fault, events: Collection[KernelEvent]) -> Fault:
    """Returns the fault that the kernel names, where the process itself could not say much."""
    if fault not in _VAGUE:
        return fault
    return next((named for event, named in _BY_EVENT.items() if event in events), fault)
