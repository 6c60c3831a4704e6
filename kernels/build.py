"""Compiles the kernels: `python -m kernels.build --targets gfx1100,sm_90` from the repository root.

Every unit of kernels.toml becomes one file per target, lib/<target>/<unit>.{co,ptx,so}. Units are
not linked together: a model uses the kernels of two or three weight types, so the backend loads
only those (PTX, which the driver compiles at load, makes that matter), and a changed source
recompiles alone. lib/<target>/manifest.json tells the backend what is in the files.

Products are kept in build/kernels under a hash of everything that went into them, so a build
with nothing changed only compares hashes, and an interrupted one leaves nothing half-made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.code_object import kernel_metadata
from kernels.compiler import CompileError, Compiler, build_library, find_compiler
from kernels.interface import Interface, InterfaceError, check_code_object, parse_ir
from kernels.table import KERNELS_DIR, Source, Unit, read_table
from kernels.targets import SHIPPED, Platform, Target, select

ROOT = KERNELS_DIR.parent
LIB_DIR = ROOT / "backends/hip/rocmforge_hip/lib"
CACHE_DIR = ROOT / "build/kernels"
TARGETS_VARIABLE = "ROCMFORGE_KERNEL_TARGETS"
# The scripts that decide what a product looks like.
_RECIPE = ("build.py", "code_object.py", "compiler.py", "interface.py")
NVIDIA_SOURCES = KERNELS_DIR / "platform/nvidia"


@dataclass(frozen=True, slots=True)
class Product:
    """What compiling one unit for one target left in the cache."""

    unit: Unit
    target: Target
    directory: Path

    @property
    def code(self) -> Path:
        """The file a runtime loads."""
        return self.directory / (self.unit.name + self.target.code_suffix)

    @property
    def assembly(self) -> Path:
        """The text of the machine code (AMD), or the PTX."""
        suffix = ".s" if self.target.platform is Platform.AMD else self.target.code_suffix
        return self.directory / (self.unit.name + suffix)

    def kernels(self) -> dict[str, Any]:
        """The manifest's entries for the kernels of this unit, by name."""
        entries: dict[str, Any] = json.loads((self.directory / "kernels.json").read_text())
        return entries


class Builder:
    """Compiles units for targets, through the cache."""

    def __init__(self, compiler: Compiler, cache: Path = CACHE_DIR) -> None:
        self._compiler = compiler
        self._cache = cache
        recipe = b"".join((KERNELS_DIR / name).read_bytes() for name in _RECIPE)
        self._recipe = hashlib.sha256(recipe + compiler.version.encode()).hexdigest()

    def product(self, unit: Unit, target: Target) -> Product:
        """The product, compiled now unless nothing that goes into it has changed.

        Raises:
            CompileError: the compiler rejects the source.
            InterfaceError: a kernel cannot be launched the same way on all targets.
        """
        directory = self._directory(unit, target.name, asdict(target))
        if not directory.exists():
            with self._filling(directory) as scratch:
                self._compile(unit, target, scratch)
        return Product(unit, target, directory)

    def interfaces(self, unit: Unit, wave: int) -> dict[str, Interface]:
        """How the kernels of a unit are launched where a wave has this many lanes, by name."""
        directory = self._directory(unit, f"interface-w{wave}", {"wave": wave})
        if not directory.exists():
            with self._filling(directory) as scratch:
                self._compiler.interface(unit, wave, scratch / "unit.ll")
        return parse_ir((directory / "unit.ll").read_text())

    def _directory(self, unit: Unit, group: str, options: dict[str, Any]) -> Path:
        files = unit.files()
        if group.startswith("host"):
            files += (KERNELS_DIR / "include/rf/platform/host_entry.h",)
        key = hashlib.sha256(json.dumps([self._recipe, unit.defines, options]).encode())
        for path in files:
            key.update(path.name.encode() + b"\0" + path.read_bytes())
        return self._cache / group / f"{unit.name}-{key.hexdigest()[:16]}"

    def _filling(self, directory: Path) -> _Scratch:
        return _Scratch(directory)

    def _compile(self, unit: Unit, target: Target, scratch: Path) -> None:
        interfaces = self.interfaces(unit, target.wave)
        output = scratch / unit.name
        resources: dict[str, dict[str, int]] = {}
        if target.platform is Platform.AMD:
            self._compiler.amd(unit, target, output)
            metadata = kernel_metadata(output.with_suffix(".co").read_bytes())
            if metadata.keys() != interfaces.keys():
                raise InterfaceError(f"{unit.name}: kernels differ between targets")
            for name, interface in interfaces.items():
                check_code_object(interface, metadata[name])
                resources[name] = _resources(metadata[name])
        elif target.platform is Platform.NVIDIA:
            self._compiler.nvidia(unit, target, output)
        else:
            self._compiler.host(unit, target, _host_entries(interfaces.values()), output)
        entries = {
            name: {
                "max_threads": interface.max_threads,
                "args_size": interface.args_size,
                "args": [asdict(argument) for argument in interface.args],
                **resources.get(name, {}),
            }
            for name, interface in interfaces.items()
        }
        (scratch / "kernels.json").write_text(json.dumps(entries, indent=1))


class _Scratch:
    """A temporary directory that becomes `directory` if its block succeeds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._scratch = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".new-"))

    def __enter__(self) -> Path:
        return self._scratch

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # Another build may have made the same product meanwhile; either one will do.
        if error is None and not self._directory.exists():
            self._scratch.rename(self._directory)
        else:
            shutil.rmtree(self._scratch)


def _resources(metadata: dict[str, Any]) -> dict[str, int]:
    return {
        "wave_size": metadata[".wavefront_size"],
        "lds_bytes": metadata[".group_segment_fixed_size"],
        "vgprs": metadata[".vgpr_count"],
        "agprs": metadata.get(".agpr_count", 0),
        "sgprs": metadata[".sgpr_count"],
        "vgpr_spills": metadata[".vgpr_spill_count"],
        "sgpr_spills": metadata[".sgpr_spill_count"],
        "scratch_bytes": metadata[".private_segment_fixed_size"],
    }


def _host_entries(interfaces: Iterable[Interface]) -> str:
    return "".join(f"RF_HOST_KERNEL({i.kernel}, {i.max_threads})\n" for i in interfaces)


def install(products: Iterable[Product], target: Target, compiler: Compiler, lib: Path) -> None:
    """Makes lib/<target> hold exactly these products and their manifest."""
    directory = lib / target.name
    directory.mkdir(parents=True, exist_ok=True)
    files, kernels = {}, {}
    for product in products:
        code = product.code.read_bytes()
        _replace(directory / product.code.name, code)
        files[product.code.name] = {
            "sha256": hashlib.sha256(code).hexdigest(),
            "bytes": len(code),
        }
        for name, entry in product.kernels().items():
            kernels[name] = {"file": product.code.name, **entry}
    manifest = {
        "target": target.name,
        "wave_size": target.wave,
        "compiler": compiler.version.splitlines()[0],
        "files": files,
        "kernels": dict(sorted(kernels.items())),
    }
    _replace(directory / "manifest.json", json.dumps(manifest, indent=1).encode())
    for path in directory.iterdir():
        if path.name not in files and path.name != "manifest.json":
            path.unlink()


def _replace(path: Path, content: bytes) -> None:
    """Writes a file in one step, and not at all when it has that content already."""
    if path.exists() and path.read_bytes() == content:
        return
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)


def check_table(sources: Iterable[Source], builder: Builder) -> None:
    """Compares the kernels named in kernels.toml with those the sources define.

    Raises:
        InterfaceError: they differ, or a kernel's arguments depend on the size of a wave.
    """
    for source in sources:
        narrow, wide = (
            {
                name: interface.args
                for unit in source.units
                for name, interface in builder.interfaces(unit, wave).items()
            }
            for wave in (32, 64)
        )
        if narrow != wide:
            raise InterfaceError(f"{source.name}.hip: the interface depends on the wave size")
        if narrow.keys() != source.kernels:
            raise InterfaceError(
                f"kernels.toml: [{source.name}] lists {sorted(source.kernels - narrow.keys())} "
                f"which its source lacks, and lacks {sorted(narrow.keys() - source.kernels)}"
            )


def build(
    targets: Iterable[Target],
    compiler: Compiler,
    *,
    lib: Path = LIB_DIR,
    jobs: int = 2,
) -> None:
    """Compiles all kernels for the targets, and what the NVIDIA platform needs beside them.

    Raises:
        CompileError, InterfaceError: the first failure; what was finished stays in the cache.
    """
    targets = tuple(targets)
    builder = Builder(compiler)
    sources = read_table()
    units = [unit for source in sources for unit in source.units]
    with ThreadPoolExecutor(jobs) as pool:
        waves = (32, 64) * len(units)
        list(pool.map(builder.interfaces, [unit for unit in units for _ in (32, 64)], waves))
        check_table(sources, builder)
        tasks = [(unit, target) for target in targets for unit in units]
        products = list(pool.map(lambda task: builder.product(*task), tasks))
    for target in targets:
        install((p for p in products if p.target is target), target, compiler, lib)
    if any(target.platform is Platform.NVIDIA for target in targets):
        build_library(
            sorted(NVIDIA_SOURCES.glob("*.c")),
            lib / "platform/nvidia/lib/libamdhip64.so",
            include=(KERNELS_DIR / "platform",),
        )


def targets_from_environment() -> tuple[Target, ...]:
    """The targets named by $ROCMFORGE_KERNEL_TARGETS; without it, all that a wheel carries."""
    names = os.environ.get(TARGETS_VARIABLE)
    return SHIPPED if names is None else select(names)


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kernels.build", description=__doc__)
    parser.add_argument("--targets", help=f"comma-separated; default ${TARGETS_VARIABLE} or all")
    parser.add_argument("--compiler", help="a ROCm clang instead of the ziglang package")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    try:
        targets = select(options.targets) if options.targets else targets_from_environment()
        build(targets, find_compiler(options.compiler), jobs=options.jobs)
    except (CompileError, InterfaceError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    names = ", ".join(target.name for target in targets)
    print(f"built {names} in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
