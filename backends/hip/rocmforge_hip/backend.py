"""The plugin: finds devices, loads a model onto one."""

from __future__ import annotations

from pathlib import Path

from rocmforge.backend.protocol import LoadOptions, ProbeResult, ProgressCallback
from rocmforge.errors import BackendError, ConfigurationError
from rocmforge_hip.device import choose_device, find_devices
from rocmforge_hip.driver import HipUnavailable
from rocmforge_hip.platform import select_platform


def create() -> HipBackend:
    """Entry point."""
    return HipBackend()


class HipBackend:
    """Whole models on a GPU, through hip-python and prebuilt kernels."""

    @property
    def name(self) -> str:
        return "hip"

    def probe(self) -> ProbeResult:
        try:
            devices = find_devices(select_platform())
        except HipUnavailable as error:
            return ProbeResult(devices=(), reason=error.detail)
        except (BackendError, ConfigurationError) as error:
            return ProbeResult(devices=(), reason=error.message)
        infos = tuple(device.info for device in devices)
        return ProbeResult(
            devices=infos, reason=None if infos else "HIP lists no device it can use"
        )
