"""Compiles the kernels: `python -m kernels.build --targets gfx1100,sm_90` from the repository root.

Every translation unit of kernels.toml becomes one file per target, lib/<target>/<unit>.{co,ptx,so}.
They are not linked together: a model uses the kernels of two or three weight types, so the backend
loads only those (PTX, which the driver compiles at load, makes that matter), and a changed source
recompiles alone. lib/<target>/manifest.json tells the backend what is in the files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernels.builder import ROOT, Builder, Product, build_library
from kernels.cache import locked, replace_file
from kernels.compiler import CompileError, Compiler, find_compiler
from kernels.interface import InterfaceError, read_constants
from kernels.table import KERNELS_DIR, Source, TranslationUnit, read_table
from kernels.targets import SHIPPED, Platform, Target, select

LIB_DIR = ROOT / "backends/hip/rocmforge_hip/lib"
TARGETS_VARIABLE = "ROCMFORGE_KERNEL_TARGETS"
NVIDIA_SOURCES = KERNELS_DIR / "platform/nvidia"


def install(products: Iterable[Product], target: Target, compiler: Compiler, lib: Path) -> None:
    """Makes lib/<target> hold exactly these products and their manifest."""
    lib.mkdir(parents=True, exist_ok=True)
    with locked(lib / f".{target.name}.lock"):
        _install(products, target, compiler, lib / target.name)


def _install(
    products: Iterable[Product], target: Target, compiler: Compiler, directory: Path
) -> None:
    directory.mkdir(exist_ok=True)
    files, kernels = {}, {}
    for product in products:
        code = product.code.read_bytes()
        replace_file(directory / product.code.name, code)
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
        "constants": read_constants(),
        "files": files,
        "kernels": dict(sorted(kernels.items())),
    }
    replace_file(directory / "manifest.json", json.dumps(manifest, indent=1).encode())
    for path in directory.iterdir():
        if path.name not in files and path.name != "manifest.json":
            path.unlink()


def check_table(sources: Iterable[Source], builder: Builder) -> None:
    """Compares the kernels named in kernels.toml with those the sources define.

    Raises:
        InterfaceError: they differ, or a kernel's arguments depend on the size of a wave.
    """
    for source in sources:
        narrow, wide = (
            {
                name: interface.args
                for unit in source.translation_units
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
    jobs: int | None = None,
    wanted: Callable[[TranslationUnit], bool] = lambda unit: True,
) -> None:
    """Compiles all kernels for the targets, and what the NVIDIA platform needs beside them.

    As many at once as `jobs` says, or as there are cores. Translation units that are not `wanted`
    are left out of the library.

    Raises:
        CompileError, InterfaceError: the first failure; what was finished stays in the cache.
    """
    targets = tuple(targets)
    builder = Builder(compiler)
    sources = read_table()
    units = [unit for source in sources for unit in source.translation_units]
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        waves = (32, 64) * len(units)
        list(pool.map(builder.interfaces, [unit for unit in units for _ in (32, 64)], waves))
        check_table(sources, builder)
        tasks = [
            (unit, target)
            for target in targets
            for unit in units
            if unit.is_for(target) and wanted(unit)
        ]
        products = list(pool.map(lambda task: builder.product(*task), tasks))
    for target in targets:
        install((p for p in products if p.target is target), target, compiler, lib)
    if any(target.platform is Platform.NVIDIA for target in targets):
        build_library(
            sorted(NVIDIA_SOURCES.glob("*.c")),
            (NVIDIA_SOURCES, NVIDIA_SOURCES.parent),
            lib / "platform/nvidia/lib/libamdhip64.so",
        )
        build_library(
            sorted(NVIDIA_SOURCES.glob("rccl/*.c")),
            (NVIDIA_SOURCES.parent,),
            lib / "platform/nvidia/lib/librccl.so",
        )


def targets_from_environment(default: tuple[Target, ...] = SHIPPED) -> tuple[Target, ...]:
    """Returns the targets named by $ROCMFORGE_KERNEL_TARGETS, if it is set."""
    names = os.environ.get(TARGETS_VARIABLE)
    return default if names is None else select(names)


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kernels.build", description=__doc__)
    parser.add_argument("--targets", help=f"comma-separated; default ${TARGETS_VARIABLE} or all")
    parser.add_argument("--compiler", help="a ROCm clang instead of the ziglang package")
    parser.add_argument("--jobs", type=int, help="default: the number of cores")
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
