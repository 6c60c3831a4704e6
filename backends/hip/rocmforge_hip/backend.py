"""The plugin: finds devices, loads a model onto one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rocmforge.backend.host_memory import host_memory
from rocmforge.backend.optional import MemoryEstimate, OpCheck, RuntimeLibrary
from rocmforge.backend.protocol import (
    LoadOptions,
    ProbeResult,
    ProgressCallback,
    Runner,
)
from rocmforge.errors import BackendError, ConfigurationError
from rocmforge.models.checkpoint import Checkpoint
from rocmforge_hip.device.discovery import (
    choose_device,
    choose_devices,
    find_devices,
    list_names,
)
from rocmforge_hip.device.driver import HipUnavailable
from rocmforge_hip.device.library import NoKernelsForTarget, find_target
from rocmforge_hip.device.platform import rocm_runtimes, select_platform
from rocmforge_hip.load.loading import load_model, measure_model
from rocmforge_hip.load.memory_budget import cache_type
from rocmforge_hip.ops.geometry import Geometry, geometry_of
from rocmforge_hip.parallel.runner import load_sharded
from rocmforge_hip.verify import selfcheck

_MOST_COMPUTE_UNITS: Final = 304
"""Of a device that is only imagined (MI300X): what splits need grows with it a little."""


def create() -> HipBackend:
    """Makes the backend; the entry point of the plugin."""
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

    def load(
        self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
    ) -> Runner:
        devices = choose_devices(
            find_devices(select_platform()), options.device, options.tensor_parallel
        )
        if len(devices) > 1:
            return load_sharded(devices, checkpoint, options, progress)
        return load_model(devices[0], checkpoint, options, progress)

    def estimate(
        self, checkpoint: Checkpoint, options: LoadOptions, memory: int | None
    ) -> MemoryEstimate:
        if memory is None:
            devices = choose_devices(
                find_devices(select_platform()), options.device, options.tensor_parallel
            )
            found = devices[0]
            name = found.info.name if len(devices) == 1 else f"each of {list_names(devices)}"
            free = min(options.memory_of(device.info) for device in devices)
            total = int(found.info.memory_total * options.memory_share)
            geometry, host_free = geometry_of(found.properties), host_memory()[1]
        else:
            name, free, geometry = "a device", memory, Geometry(_MOST_COMPUTE_UNITS)
            total, host_free = memory, None
        needs, hosted = measure_model(checkpoint, options, geometry, (free, total), host_free)
        windows = needs.windows
        return MemoryEstimate(
            device=name,
            free=free,
            allowed=needs.allowed,
            weights=needs.weights + needs.adapters,
            activations=needs.step_bytes,
            states=needs.states,
            snapshots=needs.snapshots,
            slot_bytes=needs.states // needs.state_slots if needs.state_slots else 0,
            kv_block=needs.block_bytes,
            kv_windows=windows.sequence_blocks * needs.block_bytes if windows else 0,
            kv_step=windows.step_blocks * needs.block_bytes if windows else 0,
            window_groups=windows.count if windows else 0,
            window=windows.window if windows else 0,
            kept_windows=needs.kept_windows,
            block_size=needs.block_tokens,
            kv_dtype=cache_type(needs),
            context=needs.limits.context,
            hosted=hosted,
            host_table=needs.table_bytes,
            host_free=host_free,
        )

    def runtimes(self) -> tuple[RuntimeLibrary, ...]:
        return rocm_runtimes()

    def kernels_for(self, target: str) -> str | None:
        try:
            return find_target(target)
        except NoKernelsForTarget:
            return None

    def devices(self, device: str | None, count: int) -> tuple[str, ...]:
        found = choose_devices(find_devices(select_platform()), device, count)
        return tuple(str(each.properties.index) for each in found)

    def describe(self, device: str) -> tuple[tuple[str, str], ...]:
        return selfcheck.describe(choose_device(find_devices(select_platform()), device))

    def check_ops(self, device: str, only: str) -> Iterator[OpCheck]:
        return selfcheck.check_ops(choose_device(find_devices(select_platform()), device), only)
