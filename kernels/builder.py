"""Compiles translation units through a cache.

Products are kept in build/kernels under a hash of everything that went into them, so a build
with nothing changed only compares hashes, and an interrupted one leaves nothing half-made.
`sources.py` tells what a change to a file does not reach.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.cache import locked, make, replace_file
from kernels.code_object import kernel_metadata
from kernels.compiler import Compiler, compile_library
from kernels.interface import Interface, InterfaceError, check_code_object
from kernels.sources import Sources, host_entries
from kernels.table import KERNELS_DIR, TranslationUnit
from kernels.targets import Platform, Target, select

ROOT = KERNELS_DIR.parent
CACHE_DIR = ROOT / "build/kernels"


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
        self._sources = Sources(compiler, cache)

    def product(self, unit: TranslationUnit, target: Target) -> Product:
        """Returns the product, compiled now unless nothing that goes into it has changed.

        Raises:
            CompileError: the compiler rejects the source.
            InterfaceError: a kernel cannot be launched the same way on all targets.
        """
        directory = self._directory(unit, target)
        make(directory, lambda scratch: self._compile(unit, target, scratch))
        return Product(unit, target, directory)

    def interfaces(self, unit: TranslationUnit, wave: int) -> dict[str, Interface]:
        """Returns the interfaces of a unit's kernels by name, where a wave has this many lanes."""
        return self._sources.interfaces(unit, wave)

    def _directory(self, unit: TranslationUnit, target: Target) -> Path:
        interfaces = [asdict(each) for each in self.interfaces(unit, target.wave).values()]
        key = (asdict(target), self._made_from(unit, target), interfaces)
        return self._sources.directory(target.name, unit, *key)

    def _made_from(self, unit: TranslationUnit, target: Target) -> str:
        """Returns what says from what `_compile` makes the code, and whether it would be equal."""
        if not self._is_shared_between_targets(target):
            return self._sources.text(unit, target)
        if target.code_of:
            return self._directory(unit, *select(target.code_of)).name
        return self._sources.ir_digest(unit, self._optimised_for(unit, target))

    def _is_shared_between_targets(self, target: Target) -> bool:
        return target.platform is Platform.AMD and self._compiler.is_pinned

    def _optimised_for(self, unit: TranslationUnit, target: Target) -> Target:
        """Returns the target with whose optimised IR a unit is compiled for an AMD target."""
        if not target.ir_of:
            return target
        (origin,) = select(target.ir_of)
        same = self._sources.text(unit, origin) == self._sources.text(unit, target)
        return origin if same else target

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
            self._compiler.host(unit, target, host_entries(interfaces.values()), output)
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
        if not self._is_shared_between_targets(target):
            self._compiler.amd(unit, target, output)
        elif target.code_of:
            (origin,) = select(target.code_of)
            assembly = self.product(unit, origin).assembly.read_text()
            self._compiler.amd_from_assembly(assembly, origin, target, output)
        elif target.ir_of:
            optimised = self._optimised(unit, self._optimised_for(unit, target))
            self._compiler.amd_from_optimised(optimised, target, output)
        else:
            self._compiler.amd_from_ir(self._sources.ir(unit, target), target, output)

    def _optimised(self, unit: TranslationUnit, target: Target) -> str:
        """Returns the unit's optimised IR."""
        digest = self._sources.ir_digest(unit, target)
        directory = self._sources.directory(f"optimised-{target.name}", unit, digest)

        def fill(scratch: Path) -> None:
            ir = self._sources.ir(unit, target)
            self._compiler.amd_optimised(ir, target, scratch / "unit.ll")

        make(directory, fill)
        return (directory / "unit.ll").read_text()


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
    make(directory, lambda scratch: compile_library(sources, include, scratch / output.name))
    output.parent.mkdir(parents=True, exist_ok=True)
    # One process at a time: another one may have it loaded, and load it again by another name.
    with locked(directory.with_name(f".{directory.name}.lock")):
        replace_file(output, (directory / output.name).read_bytes())
