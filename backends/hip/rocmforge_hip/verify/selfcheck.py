"""All checks of a device, one after the other, and what is to be known of it."""

from __future__ import annotations

import platform
from collections.abc import Generator, Iterator
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rocmforge.backend.optional import OpCheck
from rocmforge.errors import EngineError, RocmForgeError
from rocmforge_hip.device.discovery import FoundDevice
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.library import find_target, read_manifest
from rocmforge_hip.device.memory import Memory, spec
from rocmforge_hip.verify import (
    adapters,
    cached_attention,
    experts,
    full_attention,
    latent,
    matrices,
    recurrent,
    recurrent_decodes,
    rows,
    sampling,
)
from rocmforge_hip.verify.cases import Case, Group
from rocmforge_hip.verify.workbench import Workbench

_AMDGPU_VERSION: Final = Path("/sys/module/amdgpu/version")
_COPY_BYTES: Final = 16 << 20
_COPIES: Final = 8


def check_ops(found: FoundDevice, only: str) -> Iterator[OpCheck]:
    """Yields the results of all cases whose operation matches the pattern.

    What fails is a result. After an error of the device nothing more can be run on it.
    """
    for group in all_groups():
        cases = tuple(case for case in group.cases if fnmatchcase(case.op, only))
        if not cases:
            continue
        device_failed = False
        for check in run_group(found, Group(group.recipe, cases)):
            device_failed = device_failed or bool(check.problem)
            yield check
        if device_failed:
            problem = "not run, because the device failed before"
            yield OpCheck(op="the rest", case="", error=0, limit=0, problem=problem)
            return


def all_groups() -> Iterator[Group]:
    """Yields everything there is to check."""
    for module in (
        *(rows, matrices, adapters, experts),
        *(cached_attention, full_attention, latent, recurrent, recurrent_decodes, sampling),
    ):
        yield from module.groups()


def run_group(found: FoundDevice, group: Group) -> Generator[OpCheck]:
    """Yields the results of the cases of a group, up to the first at which the device fails."""
    current = group.cases[0]
    try:
        with Workbench(found, group.recipe) as bench:
            for case in group.cases:
                current = case
                yield _result(case, case.measure(bench))
    except EngineError as error:
        yield _result(current, float("inf"), error)


def _result(case: Case, error: float, failure: RocmForgeError | None = None) -> OpCheck:
    return OpCheck(
        op=case.op,
        case=case.name,
        error=error,
        limit=case.limit,
        problem="" if failure is None else failure.message,
    )


def describe(found: FoundDevice) -> tuple[tuple[str, str], ...]:
    """Describes device, software and speed, as labels and texts."""
    properties, info = found.properties, found.info
    driver = Driver(properties.index)
    runtime, lower = driver.versions()
    folder = find_target(properties.target)
    manifest = read_manifest(folder)
    memory = f"{info.memory_total / 2**30:.1f} GiB, {info.memory_free / 2**30:.1f} GiB free"
    kind = "integrated" if properties.is_integrated else "discrete"
    return (
        ("device", f"{properties.name}, {properties.pci_id}, {kind}"),
        ("target", f"{properties.target}, {properties.compute_units} compute units"),
        ("memory", memory),
        ("kernels", f"{folder}, {len(manifest['kernels'])}, {manifest['compiler']}"),
        ("wave", f"{properties.wave_size} (kernels are built for {manifest['wave_size']})"),
        ("HIP", f"runtime {runtime}, driver {lower}, hip-python {version('hip-python')}"),
        ("system", f"{platform.release()}, amdgpu {_amdgpu_version()}"),
        ("copy to the device", _copy_speed(driver)),
    )


def _amdgpu_version() -> str:
    """Returns the version of ROCm's driver; that of the Linux kernel has none."""
    return _AMDGPU_VERSION.read_text().strip() if _AMDGPU_VERSION.is_file() else "of the kernel"


def _copy_speed(driver: Driver) -> str:
    """Measures copies of pinned memory."""
    memory, stream = Memory(driver), driver.create_stream()
    host = memory.pinned(_COPY_BYTES, "measuring copies")
    there = memory.device(spec((_COPY_BYTES,), "u1"), "measuring copies")
    host.bytes[:] = 1
    events = [driver.create_event(timed=True) for _ in range(2)]
    for index in range(_COPIES + 1):
        if index == 1:  # the first one warms up
            driver.record_event(events[0], stream)
        driver.copy_to_device(there.array.address, host.address, _COPY_BYTES, stream)
    driver.record_event(events[1], stream)
    driver.synchronize_event(events[1])
    seconds = driver.elapsed_ns(*events) / 1e9
    for event in events:
        driver.destroy_event(event)
    for buffer in memory.release():
        buffer.free()
    driver.destroy_stream(stream)
    return f"{_COPIES * _COPY_BYTES / seconds / 1e9:.1f} GB/s"
