"""Runs kernels in tests: the one place that builds, loads and launches them and moves arrays.

    def test_copies_rows(device: Device) -> None:
        x = device.upload(np.arange(8, dtype=np.float32))
        y = device.empty((8,), np.float32)
        device.launch("rf_copy", x, y, 8, grid=1, block=64)
        check(y.get(), expected, rtol=1e-6)

The platform is chosen by the options of tests/conftest.py. `host` (the default) compiles the
kernels for the CPU and runs them under the checking library of tests/platform/host, which stops at
the first access out of bounds, race or uninitialised read; `nvidia` and `rocm` run what
`python -m kernels.build` made on a real GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rocm.bindings import hip as _hip_bindings

from kernels.build import LIB_DIR
from kernels.builder import Builder
from kernels.compiler import find_compiler
from kernels.table import KERNELS_DIR, Source, TranslationUnit, read_table
from kernels.targets import TARGETS, Platform, Target
from rocmforge_hip.device.arguments import ArgumentPacker, KernelArgumentError
from tests.support.launches.host_platform import HostPlatform
from tests.support.launches.source_lines import with_source_lines

hip: Any = _hip_bindings  # compiled from C, without types

Array = npt.NDArray[Any]
Scalar = int | float | np.number[Any]

_GUARD_BYTES = 256
_GUARD = 0xCA
_POISON = 0xFF  # every float type reads it as NaN, integers as -1


class KernelFault(AssertionError):
    """The device refused a call or a kernel did something wrong; the message is its report."""


@dataclass(frozen=True, slots=True)
class PlatformOptions:
    """Where the tests run kernels. The others concern the host platform only."""

    platform: str  # host, nvidia, rocm
    wave: int
    lane_order: str  # forward, reverse, random
    matrix_formats: frozenset[str] | None = None  # of whole models, if not all


@dataclass(frozen=True, slots=True)
class Part:
    """What lies in an array from some element on."""

    address: int


class DeviceArray:
    """An array in device memory. Made by `Device`, which also frees it."""

    def __init__(
        self,
        device: Device,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        name: str,
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.nbytes = int(np.prod(shape)) * self.dtype.itemsize
        self.name = name
        self._device = device
        self._guard = 0 if device.host else _GUARD_BYTES
        self._size = self.nbytes + 2 * self._guard
        self._memory = _ok(hip.hipMalloc(self._size), "hipMalloc") if self._size else None
        self.pointer = int(self._memory) + self._guard if self._memory is not None else 0
        if self._guard:
            image = np.full(self._size, _GUARD, np.uint8)
            image[self._guard : self._guard + self.nbytes] = _POISON
            self._copy_in(self.pointer - self._guard, image)
        if device.host and self._size and name:
            device.host.label(self.pointer, self.nbytes, name)

    @property
    def address(self) -> int:
        """The pointer, by the name that the backend's packer knows."""
        return self.pointer

    def part(self, first: int) -> Part:
        """What lies from this element on."""
        return Part(self.pointer + first * self.dtype.itemsize)

    def set(self, values: Array) -> None:
        """Uploads values of the same shape and dtype."""
        assert values.shape == self.shape
        assert values.dtype == self.dtype
        self._copy_in(self.pointer, np.ascontiguousarray(values))

    def get(self) -> Array:
        """The contents, after checking that nothing was written around them."""
        self._device.synchronize()
        image = np.empty(self._size, np.uint8)
        if self._size:
            kind = hip.hipMemcpyKind.hipMemcpyDeviceToHost
            start = ctypes.c_void_p(self.pointer - self._guard)
            self._device.ok(hip.hipMemcpy(image, start, self._size, kind), "hipMemcpy")
        self._check_guards(image)
        body = image[self._guard : self._guard + self.nbytes]
        return body.view(self.dtype).reshape(self.shape)

    def free(self) -> None:
        """Gives the memory back. Called by the fixture."""
        if self._memory is not None:
            _ok(hip.hipFree(self._memory), "hipFree")
            self._memory = None

    def _copy_in(self, address: int, values: Array) -> None:
        if values.nbytes:
            kind = hip.hipMemcpyKind.hipMemcpyHostToDevice
            call = hip.hipMemcpy(ctypes.c_void_p(address), values, values.nbytes, kind)
            self._device.ok(call, "hipMemcpy")

    def _check_guards(self, image: npt.NDArray[np.uint8]) -> None:
        outside = np.concatenate((image[: self._guard], image[self._guard + self.nbytes :]))
        changed = np.flatnonzero(outside != _GUARD)
        if changed.size:
            at = int(changed[0])
            where = (
                f"{self._guard - at} bytes before its start"
                if at < self._guard
                else f"{at - self._guard} bytes past its end"
            )
            raise KernelFault(f"{self.name or 'a buffer'} ({self.nbytes} bytes): write {where}")


class Device:
    """The device under test, with the kernels it can run.

    defines: what the host's kernels are compiled with beside what the table says, `NAME=VALUE`.
    """

    def __init__(
        self,
        options: PlatformOptions,
        table: Path = KERNELS_DIR,
        defines: tuple[str, ...] = (),
    ) -> None:
        self.host = HostPlatform.start(options) if options.platform == "host" else None
        properties = _ok(hip.hipGetDeviceProperties(0), "hipGetDeviceProperties")
        self.arch = properties.gcnArchName.split(":")[0]
        self.target = _target_for(self.arch)
        self.wave = self.target.wave
        self._images: _BuiltImages | _LibImages = (
            _BuiltImages(self.target, table, defines) if self.host else _LibImages(self.target)
        )
        self._modules: dict[Path, Any] = {}
        self._functions: dict[str, tuple[Any, ArgumentPacker]] = {}
        self._arrays: list[DeviceArray] = []

    def upload(self, values: npt.ArrayLike, name: str = "") -> DeviceArray:
        """A device array with these values."""
        array = np.asarray(values)
        result = self.empty(array.shape, array.dtype, name)
        result.set(array)
        return result

    def empty(
        self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, name: str = ""
    ) -> DeviceArray:
        """A device array of poison: NaN, or -1. Reading it in a kernel is a fault on the host."""
        shape = (shape,) if isinstance(shape, int) else shape
        array = DeviceArray(self, shape, dtype, name)
        self._arrays.append(array)
        return array

    def launch(
        self,
        kernel: str,
        *args: DeviceArray | Part | Scalar | None,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        lds_bytes: int = 0,
    ) -> None:
        """Runs a kernel to its end. Arguments are in the kernel's order; None is a null pointer.

        Raises:
            KernelFault: an argument does not fit the kernel, or the kernel did something wrong.
        """
        self.enqueue(kernel, *args, grid=grid, block=block, lds_bytes=lds_bytes)
        self.synchronize()

    def enqueue(
        self,
        kernel: str,
        *args: DeviceArray | Part | Scalar | None,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        lds_bytes: int = 0,
        stream: object = None,
    ) -> None:
        """The same without waiting, on a stream of hip-python's."""
        function, packer = self._function(kernel)
        try:
            packed = packer.pack_in_order(args)
        except KernelArgumentError as error:
            raise KernelFault(error.message) from error
        result = hip.hipModuleLaunchKernel(
            function,
            *_three(grid),
            *_three(block),
            lds_bytes or self._lds_bytes(kernel),
            stream,
            None,
            packed.extra_address,
        )
        self.ok(result, f"launch of {kernel}")

    def synchronize(self) -> None:
        """Waits for the device."""
        self.ok(hip.hipDeviceSynchronize(), "hipDeviceSynchronize")

    def ok(self, result: tuple[Any, ...], call: str) -> Any:
        """The value of a successful call.

        Raises:
            KernelFault: with the host platform's report where there is one.
        """
        if self.host and result[0] != hip.hipError_t.hipSuccess:
            finding = self.host.take_finding() or f"{call}: {result[0].name}"
            raise KernelFault(self._with_source_lines(finding))
        return _ok(result, call)

    def release(self) -> None:
        """Frees all arrays; called after each test."""
        if self.host:
            self.host.clear()
        for array in self._arrays:
            array.free()
        self._arrays.clear()

    def _with_source_lines(self, finding: str) -> str:
        kernel = re.match(r"kernel (\w+)", finding)
        if kernel is None or kernel[1] not in self._functions:
            return finding
        return with_source_lines(finding, self._images.find(kernel[1])[0])

    def function(self, kernel: str) -> object:
        """hip-python's handle of the kernel."""
        return self._function(kernel)[0]

    def blocks_at_once(self, kernel: str, threads: int) -> int:
        """Blocks of so many threads that a compute unit runs at once."""
        query = hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor
        lds_bytes = self._lds_bytes(kernel)
        return int(self.ok(query(self.function(kernel), threads, lds_bytes), "occupancy"))

    def max_threads(self, kernel: str) -> int:
        """Threads of a block that the kernel is compiled for."""
        return int(self._images.find(kernel)[1]["max_threads"])

    def has(self, kernel: str) -> bool:
        """Whether the target has a kernel of the table."""
        return self._images.has(kernel)

    def _lds_bytes(self, kernel: str) -> int:
        """Dynamic LDS that a block of the kernel needs on this target."""
        return int(self._images.find(kernel)[1].get("dynamic_lds_bytes", 0))

    def _function(self, kernel: str) -> tuple[Any, ArgumentPacker]:
        if kernel not in self._functions:
            path, entry = self._images.find(kernel)
            if path not in self._modules:
                call = hip.hipModuleLoadData(path.read_bytes())
                self._modules[path] = self.ok(call, f"loading {path.name}")
            call = hip.hipModuleGetFunction(self._modules[path], kernel.encode())
            function = self.ok(call, "hipModuleGetFunction")
            self._functions[kernel] = function, ArgumentPacker(kernel, entry["args"])
        return self._functions[kernel]


class _LibImages:
    """Kernels as `python -m kernels.build` left them for the backend."""

    def __init__(self, target: Target) -> None:
        self._directory = LIB_DIR / target.name
        manifest = self._directory / "manifest.json"
        if not manifest.exists():
            raise KernelFault(f"run: python -m kernels.build --targets {target.name}")
        self._kernels = json.loads(manifest.read_text())["kernels"]

    def has(self, kernel: str) -> bool:
        """Whether the kernel was built."""
        return kernel in self._kernels

    def find(self, kernel: str) -> tuple[Path, dict[str, Any]]:
        """The file with the kernel, and the kernel's entry in the manifest."""
        entry = self._kernels[kernel]
        return self._directory / entry["file"], entry


class _BuiltImages:
    """Kernels compiled when they are first asked for, each unit on its own."""

    def __init__(self, target: Target, table: Path, defines: tuple[str, ...]) -> None:
        self._target = target
        self._defines = defines
        self._builder = Builder(find_compiler(None))
        self._sources = read_table(table)
        self._found: dict[str, tuple[Path, dict[str, Any]]] = {}

    def has(self, kernel: str) -> bool:
        """Whether there is such a kernel, which the host has even where its libraries lack it."""
        return any(kernel in source.kernels for source in self._sources)

    def find(self, kernel: str) -> tuple[Path, dict[str, Any]]:
        """The file with the kernel, and the kernel's entry in the manifest."""
        if kernel not in self._found:  # a launch asks, and reading the sources takes longer than it
            product = self._builder.product(self._unit(kernel), self._target)
            self._found[kernel] = product.code, product.kernels()[kernel]
        return self._found[kernel]

    def _unit(self, kernel: str) -> TranslationUnit:
        for source in self._sources:
            if kernel in source.kernels:
                return self._unit_of(source, kernel)
        raise KernelFault(f"kernels.toml lists no kernel {kernel!r}")

    def _unit_of(self, source: Source, kernel: str) -> TranslationUnit:
        units = [
            replace(unit, defines=(*unit.defines, *self._defines))
            for unit in source.translation_units
        ]
        if len(units) == 1:
            return units[0]
        for unit in units:
            if kernel in self._builder.interfaces(unit, self._target.wave):
                return unit
        raise KernelFault(f"no unit of {source.name}.hip defines {kernel}")


def _target_for(arch: str) -> Target:
    by_name = {target.name: target for target in TARGETS}
    if arch in by_name:
        return by_name[arch]
    nvidia = [target for target in TARGETS if target.platform is Platform.NVIDIA]
    if arch.startswith("sm_"):
        fitting = [t for t in nvidia if int(t.name[3:]) <= int(arch[3:])]
        if fitting:
            return fitting[-1]
    raise KernelFault(f"no kernels are built for {arch}")


def _three(size: int | Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*((size,) if isinstance(size, int) else size), 1, 1)[:3]
    return x, y, z


def _ok(result: tuple[Any, ...], call: str) -> Any:
    status, *values = result
    if status != hip.hipError_t.hipSuccess:
        raise KernelFault(f"{call}: {status.name}")
    return values[0] if len(values) == 1 else values


def select_platform(platform: str) -> None:
    """Makes hip-python load the library of this platform. Before the first HIP call."""
    if platform == "nvidia":
        os.environ["ROCM_PATH"] = str(LIB_DIR / "platform/nvidia")


def check(
    actual: Array,
    expected: Array,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    inputs: Mapping[str, Array] | None = None,
) -> None:
    """Compares with an expectation computed in float64.

    Every element must satisfy |actual - expected| <= atol + rtol * |expected|; NaN matches NaN
    alone and infinity itself alone. The message shows the worst element and, from `inputs` of the
    same shape, what it was computed from.
    """
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    got, want = actual.astype(np.float64), np.asarray(expected, np.float64)
    with np.errstate(invalid="ignore"):
        excess = np.abs(got - want) - (atol + rtol * np.abs(want))
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    excess = np.where(same, -np.inf, np.where(np.isnan(excess), np.inf, excess))
    wrong = int(np.count_nonzero(excess > 0))
    if wrong:
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
        lines = [f"{wrong} of {got.size} elements differ; the worst, at {index}:"]
        lines += [f"  actual   {got[index]!r}", f"  expected {want[index]!r}"]
        lines += [
            f"  {name} = {values[index]!r}"
            for name, values in (inputs or {}).items()
            if values.shape == got.shape
        ]
        raise AssertionError("\n".join(lines))
