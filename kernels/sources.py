"""What a translation unit is before it is compiled, as far as possible without reading it again.

Each stage is kept under a hash of what it was made from: files become text, text becomes LLVM IR
before all optimisations, and interfaces. So other comments, or the same headers in other folders,
come as far as the text, and functions that a unit does not call as far as the IR. What is made of
these is equal then, and compiled already.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from pathlib import Path

from kernels.cache import make
from kernels.compiler import Compiler, interface_target
from kernels.interface import Interface, decode, encode, parse_ir
from kernels.table import KERNELS_DIR, TranslationUnit
from kernels.targets import Platform, Target

# The scripts that decide what is made.
_RECIPE = ("builder.py", "code_object.py", "compiler.py", "interface.py", "sources.py")


class Sources:
    """Reads translation units with a compiler, through a cache."""

    def __init__(self, compiler: Compiler, cache: Path) -> None:
        self._compiler = compiler
        self._cache = cache
        recipe = b"".join((KERNELS_DIR / name).read_bytes() for name in _RECIPE)
        self._recipe = hashlib.sha256(recipe + compiler.version.encode()).hexdigest()

    def directory(self, group: str, unit: TranslationUnit, *made_from: object) -> Path:
        """Returns where the cache keeps what was made of a unit from this, values of JSON."""
        key = _digest(json.dumps([self._recipe, unit.defines, *made_from]).encode())
        return self._cache / group / f"{unit.name}-{key[:16]}"

    def text(self, unit: TranslationUnit, target: Target) -> str:
        """Returns a hash of all in a unit's source that a target's code depends on.

        Raises:
            CompileError: the preprocessor rejects the source.
        """
        entries = ""
        if target.platform is Platform.HOST:
            entries = host_entries(self.interfaces(unit, target.wave).values())
        files = _files(unit, target.platform)
        what = (target.cpu, target.features, target.wave)
        directory = self.directory(f"text-{target.name}", unit, files, what, entries)

        def fill(scratch: Path) -> None:
            text = self._compiler.text(unit, target, entries)
            (scratch / "digest").write_text(_digest(text.encode()))

        make(directory, fill)
        return (directory / "digest").read_text()

    def ir(self, unit: TranslationUnit, target: Target) -> str:
        """Returns a unit's LLVM IR for an AMD target before all optimisations.

        Raises:
            CompileError: the compiler rejects the source.
        """
        return zlib.decompress(
            (self._ir_directory(unit, target) / "unit.ll.z").read_bytes()
        ).decode()

    def ir_digest(self, unit: TranslationUnit, target: Target) -> str:
        """Returns a hash of what `ir` returns, and raises the same."""
        return (self._ir_directory(unit, target) / "digest").read_text()

    def _ir_directory(self, unit: TranslationUnit, target: Target) -> Path:
        directory = self.directory(f"ir-{target.name}", unit, self.text(unit, target))

        def fill(scratch: Path) -> None:
            ir = self._compiler.amd_ir(unit, target, scratch / "unit.ll").encode()
            (scratch / "unit.ll.z").write_bytes(zlib.compress(ir, level=1))
            (scratch / "digest").write_text(_digest(ir))

        make(directory, fill)
        return directory

    def interfaces(self, unit: TranslationUnit, wave: int) -> dict[str, Interface]:
        """Returns the interfaces of a unit's kernels by name, where a wave has this many lanes.

        Raises:
            CompileError: the compiler rejects the source.
            InterfaceError: a kernel takes what cannot be passed the same way on all targets.
        """
        text = self.text(unit, interface_target(wave))
        directory = self.directory(f"interface-w{wave}", unit, text)

        def fill(scratch: Path) -> None:
            ir = scratch / "unit.ll"
            self._compiler.interface(unit, wave, ir)
            (scratch / "interfaces.json").write_text(encode(parse_ir(ir.read_text()).values()))
            ir.unlink()

        make(directory, fill)
        return decode((directory / "interfaces.json").read_text())


def host_entries(interfaces: Iterable[Interface]) -> str:
    """Returns what follows a source in C++ that becomes a library for the host."""
    return "".join(f"RF_HOST_KERNEL({i.kernel}, {i.max_threads})\n" for i in interfaces)


def _files(unit: TranslationUnit, platform: Platform) -> str:
    """Returns a hash of the files that a unit includes on a platform."""
    files = unit.files(platform)
    if platform is Platform.HOST:
        files += (KERNELS_DIR / "include/rf/platform/host_entry.h",)
    key = hashlib.sha256()
    for path in files:
        key.update(path.name.encode() + b"\0" + path.read_bytes())
    return key.hexdigest()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
