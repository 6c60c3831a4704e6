"""Kernels by name: the manifest of a target, and its code objects.

`kernels/build.py` leaves one folder per target in lib/, with a manifest that says for each kernel
its file, its launch bounds and the type and offset of each argument. A code object is loaded when
a kernel of it is first asked for, which the runner does before its first step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from rocmforge.errors import ConfigurationError
from rocmforge_hip.device.arguments import KernelArgumentError
from rocmforge_hip.device.constants import check_constants
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.kernel import Kernel
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

_SM: Final = re.compile(r"sm_([0-9]+)")
_OF_ONE_CHIP: Final = frozenset({90})
"""Versions whose PTX has instructions that no later chip has (kernels/targets.py)."""

K = TypeVar("K")
P = ParamSpec("P")


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


def find_target(target: str, lib: Path = LIB_DIR) -> str:
    """Returns the folder of lib/ whose kernels run on a device: its own, else that of its family.

    Raises:
        NoKernelsForTarget: There is none.
    """
    available = sorted(path.parent.name for path in lib.glob("*/manifest.json"))
    candidates = [target]
    candidates += [name for name, chips in _GENERIC.items() if target in chips]
    if chip := _SM.fullmatch(target):
        # The driver compiles PTX for its own chip and most for any later one. Other folders may lie
        # beside it, as a copy for an experiment does.
        older = [int(ptx[1]) for name in available if (ptx := _SM.fullmatch(name))]
        older = [each for each in older if each <= int(chip[1]) and each not in _OF_ONE_CHIP]
        older.sort(reverse=True)
        candidates += [f"sm_{each}" for each in older]
    for name in candidates:
        if name in available:
            return name
    raise NoKernelsForTarget(target, available)


def read_manifest(folder: str, lib: Path = LIB_DIR) -> dict[str, Any]:
    """Reads what a folder of lib/ says about its kernels."""
    found: dict[str, Any] = json.loads((lib / folder / "manifest.json").read_text())
    return found


class KernelLibrary:
    """The kernels of one device. Owns the loaded modules."""

    def __init__(self, driver: Driver, stream: int, target: str, lib: Path = LIB_DIR) -> None:
        self.folder = lib / find_target(target, lib)
        manifest = read_manifest(self.folder.name, lib)
        check_constants(self.folder.name, manifest.get("constants", {}))
        self.wave_size: int = manifest["wave_size"]
        self._entries: dict[str, dict[str, Any]] = manifest["kernels"]
        self._driver = driver
        self._stream = stream
        self._modules: dict[str, int] = {}
        self._kernels: dict[tuple[str, Callable[..., None], int], Kernel[Any]] = {}

    def kernel(
        self, name: str, declaration: Callable[P, None], stream: int | None = None
    ) -> Kernel[P]:
        """Returns the kernel of this name; loads its code object if no other kernel has.

        Args:
            name: As in the manifest.
            declaration: Of its arguments, which the manifest must agree with: see `arguments`.
            stream: To launch on; None = that of the library.

        Raises:
            KernelArgumentError: There is no such kernel, or it takes other arguments.
            HipError: HIP cannot load it.
        """
        stream = self._stream if stream is None else stream
        key = name, declaration, stream
        if key not in self._kernels:
            if name not in self._entries:
                raise KernelArgumentError(name, f"there is no such kernel in {self.folder.name}")
            entry = self._entries[name]
            function = self._driver.function(self._module(entry["file"]), name)
            self._kernels[key] = Kernel(self._driver, stream, function, name, entry, declaration)
        return self._kernels[key]

    def available(
        self, names: Mapping[K, str], declaration: Callable[P, None]
    ) -> dict[K, Kernel[P]]:
        """Returns those of several kernels that the target has, by the keys of their names.

        Args:
            names: As in the manifest, or of none of its kernels.
            declaration: Of the arguments of each.

        Raises:
            KernelArgumentError: One of them takes other arguments.
            HipError: HIP cannot load it.
        """
        return {
            key: self.kernel(name, declaration) for key, name in names.items() if self.has(name)
        }

    def has(self, name: str) -> bool:
        """Returns whether the target has a kernel of this name: some are for one family only."""
        return name in self._entries

    def add(
        self,
        name: str,
        symbol: str,
        image: bytes,
        entry: Mapping[str, Any],
        declaration: Callable[P, None],
    ) -> Kernel[P]:
        """Loads a kernel that is not in the manifest.

        Args:
            name: What errors call it.
            symbol: Of the kernel in its module.
            image: A code object, or PTX.
            entry: What a manifest would say of it.
            declaration: Of its arguments.

        Raises:
            KernelArgumentError: It takes other arguments.
            HipError: HIP cannot load it.
        """
        self._modules[name] = self._driver.load_module(image + b"\0", name)
        function = self._driver.function(self._modules[name], symbol)
        return Kernel(self._driver, self._stream, function, name, entry, declaration)

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
