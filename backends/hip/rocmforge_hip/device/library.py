"""Kernels by name: the manifest of a target, its code objects, and the packing of arguments.

`kernels/build.py` leaves one folder per target in lib/, with a manifest that says for each kernel
its file, its launch bounds and the type and offset of each argument. A code object is loaded when
a kernel of it is first asked for, which the runner does before its first step.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from rocmforge.errors import BackendError, ConfigurationError
from rocmforge_hip.device.driver import ArgumentBuffer, Dim3, Driver, HipError
from rocmforge_hip.device.platform import LIB_DIR

_GENERIC: Final = {
    "gfx9-4-generic": ("gfx940", "gfx941", "gfx942", "gfx950"),
    "gfx10-1-generic": tuple(f"gfx101{digit}" for digit in range(4)),
    "gfx10-3-generic": tuple(f"gfx103{digit}" for digit in range(7)),
    "gfx11-generic": tuple(f"gfx110{digit}" for digit in range(4))
    + tuple(f"gfx115{digit}" for digit in range(4)),
    "gfx12-generic": ("gfx1200", "gfx1201"),
}
"""Chips that a generic code object runs on (LLVM's AMDGPUUsage, "Generic Processor")."""

_CODES: Final = {"pointer": "Q", "i8": "b", "i16": "h", "i32": "i", "i64": "q"} | {
    "f16": "e",
    "f32": "f",
    "f64": "d",
}
_FLOATS: Final = ("f16", "f32", "f64")
_MAX_GRID: Final = (2**31 - 1, 65535, 65535)


class NoKernelsForTarget(ConfigurationError):
    """No code object runs on this device."""

    def __init__(self, target: str, available: Sequence[str]) -> None:
        super().__init__(
            f"There are no kernels for {target}. There are kernels for: "
            f"{', '.join(available) or 'nothing'}. "
            f"Build them with `python -m kernels.build --targets {target}`."
        )
        self.target = target
        self.available = tuple(available)


class KernelArgumentError(BackendError):
    """A launch does not fit its kernel: a mistake in this package."""


class OnDevice(Protocol):
    """Anything that can be passed as a pointer."""

    @property
    def address(self) -> int:
        """Where it lies in device memory."""
        ...


Argument = OnDevice | int | float | np.number[Any] | None


def find_target(target: str, lib: Path = LIB_DIR) -> str:
    """The folder of lib/ whose kernels run on a device: its own, else that of its family.

    Raises:
        NoKernelsForTarget: There is none.
    """
    available = sorted(path.parent.name for path in lib.glob("*/manifest.json"))
    candidates = [target]
    candidates += [name for name, chips in _GENERIC.items() if target in chips]
    if target.startswith("sm_"):
        # The driver compiles PTX for its own chip or any later one.
        older = [name for name in available if name.startswith("sm_")]
        older = [name for name in older if int(name[3:]) <= int(target[3:])]
        candidates += sorted(older, key=lambda name: int(name[3:]), reverse=True)
    for name in candidates:
        if name in available:
            return name
    raise NoKernelsForTarget(target, available)


def read_manifest(folder: str, lib: Path = LIB_DIR) -> dict[str, Any]:
    """What a folder of lib/ says about its kernels."""
    found: dict[str, Any] = json.loads((lib / folder / "manifest.json").read_text())
    return found


class ArgumentPacker:
    """Packs the arguments of one kernel where its manifest entry says they lie.

    hip-python packs Python objects by their own size and says nothing when there are too few or
    when a host address is passed by mistake, so it is only given the finished bytes.
    """

    def __init__(self, kernel: str, arguments: Sequence[Mapping[str, Any]]) -> None:
        self.kernel = kernel
        self._names = [argument["name"] for argument in arguments]
        self._kinds = [argument["type"] for argument in arguments]
        self._format = _format(arguments)
        self._buffer = ArgumentBuffer(self._format.size)

    def pack(self, arguments: Sequence[Argument]) -> ArgumentBuffer:
        """The packed arguments, valid until the next call.

        Raises:
            KernelArgumentError: Their number, a kind or a size is wrong.
        """
        if len(arguments) != len(self._names):
            raise KernelArgumentError(
                self.kernel,
                f"it takes {len(self._names)} arguments ({', '.join(self._names)}), "
                f"not {len(arguments)}",
            )
        values = [
            self._address(name, argument)
            if kind == "pointer"
            else self._number(name, kind, argument)
            for name, kind, argument in zip(self._names, self._kinds, arguments, strict=True)
        ]
        try:
            self._format.pack_into(self._buffer.data, 0, *values)
        except (struct.error, OverflowError) as error:
            raise KernelArgumentError(
                self.kernel, f"{error}; got {self.describe(arguments)}"
            ) from error
        return self._buffer

    def describe(self, arguments: Sequence[Argument]) -> str:
        """Names and values, for errors."""
        pairs = zip(self._names, arguments, strict=True)
        return ", ".join(f"{name}={argument}" for name, argument in pairs)

    def _address(self, name: str, argument: Argument) -> int:
        if argument is None:
            return 0
        address = getattr(argument, "address", None)
        if not isinstance(address, int):
            raise KernelArgumentError(self.kernel, f"{name} is a pointer, got {argument!r}")
        return address

    def _number(self, name: str, kind: str, argument: Argument) -> Argument:
        # struct turns an integer into a float without a word, but not the other way round.
        if kind in _FLOATS and not isinstance(argument, float | np.floating):
            raise KernelArgumentError(self.kernel, f"{name} is a {kind}, got {argument!r}")
        return argument


class Kernel:
    """A kernel that can be launched on the stream of its library.

    `launch` checks what can be known: number, kinds and sizes of arguments, and the size of grid
    and block. That arrays are as large as the kernel assumes is checked by `ops`.
    """

    def __init__(
        self, driver: Driver, stream: int, function: int, name: str, entry: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.max_threads: int = entry["max_threads"]
        self._driver = driver
        self._stream = stream
        self._function = function
        self._packer = ArgumentPacker(name, entry["args"])

    def launch(self, *arguments: Argument, grid: Dim3, block: int, lds_bytes: int = 0) -> None:
        """Starts the kernel. None is a null pointer.

        Raises:
            KernelArgumentError: The launch does not fit the kernel.
            HipError: HIP refused it.
        """
        if not 0 < block <= self.max_threads or not all(
            0 < size <= limit for size, limit in zip(grid, _MAX_GRID, strict=True)
        ):
            raise KernelArgumentError(
                self.name,
                f"grid {grid}, block {block} is out of bounds (at most {self.max_threads} threads)",
            )
        packed = self._packer.pack(arguments)
        try:
            self._driver.launch(
                self._function, grid, (block, 1, 1), lds_bytes, self._stream, packed
            )
        except HipError as error:
            raise HipError(
                error.call,
                error.code,
                error.device,
                f"kernel {self.name}, grid {grid}, block {block}, "
                f"{self._packer.describe(arguments)}",
            ) from error


def _format(arguments: Sequence[Mapping[str, Any]]) -> struct.Struct:
    """The layout of the arguments, with the manifest's offsets."""
    text, end = "<", 0
    for argument in arguments:
        code = _CODES[argument["type"]]
        text += f"{argument['offset'] - end}x{code}"
        end = argument["offset"] + struct.calcsize("<" + code)
    return struct.Struct(text)


class KernelLibrary:
    """The kernels of one device. Owns the loaded modules."""

    def __init__(self, driver: Driver, stream: int, target: str, lib: Path = LIB_DIR) -> None:
        self.folder = lib / find_target(target, lib)
        manifest = read_manifest(self.folder.name, lib)
        self.wave_size: int = manifest["wave_size"]
        self._entries: dict[str, dict[str, Any]] = manifest["kernels"]
        self._driver = driver
        self._stream = stream
        self._modules: dict[str, int] = {}
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, name: str) -> Kernel:
        """The kernel of this name; loads its code object if no other kernel has.

        Raises:
            KernelArgumentError: There is no such kernel.
            HipError: HIP cannot load it.
        """
        if name not in self._kernels:
            if name not in self._entries:
                raise KernelArgumentError(name, f"there is no such kernel in {self.folder.name}")
            entry = self._entries[name]
            function = self._driver.function(self._module(entry["file"]), name)
            self._kernels[name] = Kernel(self._driver, self._stream, function, name, entry)
        return self._kernels[name]

    def add(self, name: str, symbol: str, image: bytes, entry: Mapping[str, Any]) -> Kernel:
        """A kernel that is not in the manifest.

        Args:
            name: what errors call it.
            symbol: of the kernel in its module.
            image: a code object, or PTX.
            entry: what a manifest would say of it.

        Raises:
            HipError: HIP cannot load it.
        """
        self._modules[name] = self._driver.load_module(image + b"\0", name)
        function = self._driver.function(self._modules[name], symbol)
        return Kernel(self._driver, self._stream, function, name, entry)

    def close(self) -> None:
        """Unloads everything."""
        self._kernels.clear()
        while self._modules:
            self._driver.unload_module(self._modules.popitem()[1])

    def _module(self, file: str) -> int:
        if file not in self._modules:
            path = self.folder / file
            # NUL-terminated: PTX is text, and CUDA reads it as a C string.
            self._modules[file] = self._driver.load_module(path.read_bytes() + b"\0", str(path))
        return self._modules[file]
