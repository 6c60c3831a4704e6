"""Compiles translation units through a cache.

Products are kept in build/kernels under a hash of everything that went into them, so a build
with nothing changed only compares hashes, and an interrupted one leaves nothing half-made.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.code_object import kernel_metadata
from kernels.compiler import Compiler, compile_library
from kernels.interface import (
    Interface,
    InterfaceError,
    check_code_object,
    decode,
    encode,
    parse_ir,
)
from kernels.table import KERNELS_DIR, TranslationUnit
from kernels.targets import Platform, Target, select

ROOT = KERNELS_DIR.parent
CACHE_DIR = ROOT / "build/kernels"
# The scripts that decide what a product looks like.
_RECIPE = ("builder.py", "code_object.py", "compiler.py", "interface.py")


@dataclass(frozen=True, slots=True)
class Product:
    """The files that compiling one translation unit for one target left in the cache."""

    unit: TranslationUnit
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
        """Returns the manifest's entries for the kernels of this unit, by name."""
        entries: dict[str, Any] = json.loads((self.directory / "kernels.json").read_text())
        return entries


class Builder:
    """Compiles translation units for targets, through the cache."""

    def __init__(self, compiler: Compiler, cache: Path = CACHE_DIR) -> None:
        self._compiler = compiler
        self._cache = cache
        recipe = b"".join((KERNELS_DIR / name).read_bytes() for name in _RECIPE)
        self._recipe = hashlib.sha256(recipe + compiler.version.encode()).hexdigest()

    def product(self, unit: TranslationUnit, target: Target) -> Product:
        """Returns the product, compiled now unless nothing that goes into it has changed.

        Raises:
            CompileError: the compiler rejects the source.
            InterfaceError: a kernel cannot be launched the same way on all targets.
        """
        directory = self._directory(unit, target.platform, target.name, asdict(target))
        _make(directory, lambda scratch: self._compile(unit, target, scratch))
        return Product(unit, target, directory)

    def interfaces(self, unit: TranslationUnit, wave: int) -> dict[str, Interface]:
        """Returns the interfaces of a unit's kernels by name, where a wave has this many lanes."""
        directory = self._directory(unit, Platform.AMD, f"interface-w{wave}", {"wave": wave})
        _make(directory, lambda scratch: self._read_interfaces(unit, wave, scratch))
        return decode((directory / "interfaces.json").read_text())

    def _read_interfaces(self, unit: TranslationUnit, wave: int, scratch: Path) -> None:
        ir = scratch / "unit.ll"
        self._compiler.interface(unit, wave, ir)
        (scratch / "interfaces.json").write_text(encode(parse_ir(ir.read_text()).values()))
        ir.unlink()

    def _directory(
        self, unit: TranslationUnit, platform: Platform, group: str, options: dict[str, Any]
    ) -> Path:
        files = unit.files(platform)
        if platform is Platform.HOST:
            files += (KERNELS_DIR / "include/rf/platform/host_entry.h",)
        key = hashlib.sha256(json.dumps([self._recipe, unit.defines, options]).encode())
        for path in files:
            key.update(path.name.encode() + b"\0" + path.read_bytes())
        return self._cache / group / f"{unit.name}-{key.hexdigest()[:16]}"

    def _compile(self, unit: TranslationUnit, target: Target, scratch: Path) -> None:
        interfaces = self.interfaces(unit, target.wave)
        output = scratch / unit.name
        resources: dict[str, dict[str, int]] = {}
        if target.platform is Platform.AMD:
            self._compile_amd(unit, target, output)
            metadata = kernel_metadata(output.with_suffix(".co").read_bytes())
            if metadata.keys() != interfaces.keys():
                raise InterfaceError(f"{unit.name}: kernels differ between targets")
            for name, interface in interfaces.items():
                check_code_object(interface, metadata[name])
                resources[name] = _resources(metadata[name])
        elif target.platform is Platform.NVIDIA:
            self._compiler.nvidia(unit, target, output)
            launches = _launches(output.with_suffix(".ptx").read_text())
            resources = {name: launches[name] for name in interfaces}
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

    def _compile_amd(self, unit: TranslationUnit, target: Target, output: Path) -> None:
        if target.code_of and self._compiler.is_pinned:
            (origin,) = select(target.code_of)
            assembly = self.product(unit, origin).assembly.read_text()
            self._compiler.amd_from(assembly, origin, target, output)
        elif target.ir_of and self._compiler.is_pinned:
            self._compiler.amd_from_ir(self._optimised_ir(unit, target.ir_of), target, output)
        else:
            self._compiler.amd(unit, target, output)

    def _optimised_ir(self, unit: TranslationUnit, name: str) -> str:
        """Returns the unit's optimised IR for the target of that name."""
        (origin,) = select(name)
        directory = self._directory(unit, Platform.AMD, f"ir-{name}", asdict(origin))
        _make(directory, lambda scratch: self._compiler.amd_ir(unit, origin, scratch / "unit.ll"))
        return (directory / "unit.ll").read_text()


def _make(directory: Path, make: Callable[[Path], None]) -> None:
    """Has `make` fill a directory unless it exists; whoever else wants it waits meanwhile.

    Several processes test at once, and each would compile the same kernels.
    """
    if directory.exists():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.with_name(f".{directory.name}.lock")):
        if not directory.exists():
            with _Scratch(directory) as scratch:
                make(scratch)


class _Scratch:
    """A temporary directory that becomes `directory` if its block succeeds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._scratch = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".new-"))

    def __enter__(self) -> Path:
        return self._scratch

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._scratch.rename(self._directory)
        shutil.rmtree(self._scratch, ignore_errors=True)


def _resources(metadata: dict[str, Any]) -> dict[str, int]:
    return {
        "max_threads": metadata[".max_flat_workgroup_size"],
        "wave_size": metadata[".wavefront_size"],
        "lds_bytes": metadata[".group_segment_fixed_size"],
        "vgprs": metadata[".vgpr_count"],
        "agprs": metadata.get(".agpr_count", 0),
        "sgprs": metadata[".sgpr_count"],
        "vgpr_spills": metadata[".vgpr_spill_count"],
        "sgpr_spills": metadata[".sgpr_spill_count"],
        "scratch_bytes": metadata[".private_segment_fixed_size"],
    }


def _launches(ptx: str) -> dict[str, dict[str, int]]:
    """Returns the threads that a block may have and the dynamic LDS it needs, by kernel.

    Both may depend on the target; RF_LARGE_LDS leaves the latter as a comment.
    """
    launches = {}
    for entry in ptx.split(".visible .entry ")[1:]:
        bound = re.match(r"(\w+)\([^)]*\)\s*\.maxntid (\d+)", entry)
        assert bound is not None, "a kernel has no launch bounds"
        name, threads = bound.groups()
        lds = re.search(r"// large lds (\d+)", entry)
        launches[name] = {
            "max_threads": int(threads),
            "dynamic_lds_bytes": int(lds[1]) if lds else 0,
        }
    return launches


def _host_entries(interfaces: Iterable[Interface]) -> str:
    return "".join(f"RF_HOST_KERNEL({i.kernel}, {i.max_threads})\n" for i in interfaces)


def build_library(sources: Sequence[Path], include: Sequence[Path], output: Path) -> None:
    """Compiles a library of C or C++ unless `output` is that already.

    Raises:
        CompileError: the compiler rejects a source.
    """
    headers = [path for folder in include for path in sorted(folder.rglob("*.h"))]
    key = hashlib.sha256((KERNELS_DIR / "compiler.py").read_bytes())
    for path in (*sources, *headers):
        key.update(path.name.encode() + b"\0" + path.read_bytes())
    directory = CACHE_DIR / "libraries" / key.hexdigest()[:16]
    _make(directory, lambda scratch: compile_library(sources, include, scratch / output.name))
    output.parent.mkdir(parents=True, exist_ok=True)
    # One process at a time: another one may have it loaded, and load it again by another name.
    with locked(directory.with_name(f".{directory.name}.lock")):
        replace_file(output, (directory / output.name).read_bytes())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock, a file that stays, against other processes and threads."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file in one step, and not at all when it has that content already."""
    if path.exists() and path.read_bytes() == content:
        return
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)
