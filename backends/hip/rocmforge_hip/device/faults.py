"""The kinds of HIP's errors that say something about the device: the one table of them.

Source: hip_runtime_api.h of ROCm 6.4. What is not here is a mistake in a call, not of a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rocmforge.errors import Fault

FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "hipErrorECCNotCorrectable": Fault.MEMORY,
        "hipErrorIllegalAddress": Fault.ADDRESS,
        "hipErrorLaunchTimeOut": Fault.HANG,
        "hipErrorLaunchFailure": Fault.KERNEL,
        "hipErrorPriorLaunchFailure": Fault.KERNEL,
        "hipErrorAssert": Fault.KERNEL,
        "hipErrorNoDevice": Fault.LOST,
        "hipErrorInvalidDevice": Fault.LOST,  # one that was there before
        "hipErrorNotInitialized": Fault.LOST,
        "hipErrorDeinitialized": Fault.LOST,
        "hipErrorContextIsDestroyed": Fault.LOST,
        "hipErrorIllegalState": Fault.LOST,
        "hipErrorOperatingSystem": Fault.LOST,
        "hipErrorUnknown": Fault.LOST,  # the runtime cannot say what happened
        "hipErrorRuntimeMemory": Fault.LOST,  # a call of the runtime beneath HIP failed
        "hipErrorRuntimeOther": Fault.LOST,
    }
)
"""By HIP's names."""


def fault_of(code: str) -> Fault:
    """Returns what kind of fault an error is, by HIP's name of it."""
    return FAULTS.get(code, Fault.ERROR)
