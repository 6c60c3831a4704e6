"""The command lines that turn a translation unit into what a GPU, or the host, loads.

All kernels are compiled by calling clang's front end (`-cc1`) and lld directly: clang's driver
would look for a ROCm or CUDA installation, which nothing here needs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.table import INCLUDE_DIR, TranslationUnit
from kernels.targets import Platform, Target

_HOST_TRIPLE = "x86_64-unknown-linux-gnu"

_WAIT = "griddepcontrol.wait;"
_CONTRACT = "-ffp-contract=fast-honor-pragmas"
_LANGUAGE = (
    "-std=c++20",
    "-fdeclspec",
    "-fgnuc-version=4.2.1",
    _CONTRACT,
    "-Wall",
    "-Wextra",
    "-Werror",
)
_DEVICE = (
    *("-aux-triple", _HOST_TRIPLE, "-x", "hip", "-fcuda-is-device"),
    *("-fcuda-allow-variadic-functions", "-fvisibility=hidden"),
    *("-fapply-global-visibility-to-externs", "-fhip-kernel-arg-name"),
)
# The sanitizers' instrumentation without their run time: every load and store of a kernel becomes
# a call that tests/platform/host answers.
_CHECKED = (
    "-fsanitize=address,alignment,array-bounds,integer-divide-by-zero,shift-base,shift-exponent",
    "-fno-sanitize-address-use-odr-indicator",
    *("-mllvm", "-asan-instrumentation-with-call-threshold=0"),
    *("-mllvm", "-asan-opt=0", "-mllvm", "-asan-stack=0"),
)

# As clang's own driver has it: no check of what its front end made, and no memory given back.
_BRIEF = ("-disable-llvm-verifier", "-disable-free")
# The order in which values are used matters to what comes later, and is lost unless asked for.
_USES = ("-emit-llvm-uselists",)
# What is before the name of a file in the preprocessor's `# 1 "/folder/name.h"`.
_FOLDERS = re.compile(r'(?m)^(# \d+ ")[^"]*/')


class CompileError(Exception):
    """A compiler or linker failed; the message is its output."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """clang and lld, from the `ziglang` package or an installed ROCm."""

    clang: tuple[str, ...]
    lld: tuple[str, ...]
    version: str
    # Whether it is the one that `Target.code_of` and `ir_of` were measured with.
    is_pinned: bool = False

    def text(self, unit: TranslationUnit, target: Target, entries: str) -> str:
        """Returns a unit as the preprocessor leaves it, without what has no part in its code.

        That is comments, layout and the folders of files. Lines stay where code tells of them, on
        the host, whose source is followed by `entries`.
        """
        if target.platform is not Platform.HOST:
            return self._front_end(unit, target, ("-E", "-P", "-fminimize-whitespace"), "-")
        source = _host_source(unit, entries)
        return _FOLDERS.sub(r"\1", _run((*self._host_front_end(unit, target), "-E", "-"), source))

    def interface(self, unit: TranslationUnit, wave: int, output: Path) -> None:
        """Writes a unit's unoptimised LLVM IR, which tells the types of arguments."""
        mode = ("-emit-llvm", "-O0", "-disable-llvm-passes")  # which would inline functions
        self._front_end(unit, interface_target(wave), mode, output)

    def amd(self, unit: TranslationUnit, target: Target, output: Path) -> None:
        """Writes `output`.s and the code object `output`.co."""
        mode = ("-S", *_optimised(target))
        self._front_end(unit, target, mode, output.with_suffix(".s"))
        self._assemble(target, output)

    def amd_ir(self, unit: TranslationUnit, target: Target, scratch: Path) -> str:
        """Returns a unit's LLVM IR before all optimisations, without places in its source.

        `scratch` is a file for use meanwhile.
        """
        mode = ("-emit-llvm", *_USES, "-disable-llvm-passes", *_optimised(target))
        self._front_end(unit, target, mode, scratch)
        ir = scratch.read_text()
        scratch.unlink()
        return without_places(ir)

    def amd_from_ir(self, ir: str, target: Target, output: Path) -> None:
        """Writes what `amd` does, from what `amd_ir` returned for the same target."""
        self._amd_from(ir, target, ("-S",), output.with_suffix(".s"))
        self._assemble(target, output)

    def amd_optimised(self, ir: str, target: Target, output: Path) -> None:
        """Writes LLVM IR after all optimisations but those of choosing instructions, as text.

        `ir` is what `amd_ir` returned for the same target.
        """
        self._amd_from(ir, target, ("-emit-llvm", *_USES), output)

    def amd_from_optimised(self, ir: str, target: Target, output: Path) -> None:
        """Writes what `amd` does, from the optimised IR of a target that has the same."""
        ir = re.sub(r'"target-cpu"="[^"]*"', f'"target-cpu"="{target.cpu}"', ir)
        ir = re.sub(r' "target-features"="[^"]*"', "", ir)  # those of the target
        self._amd_from(ir, target, ("-S", "-disable-llvm-passes"), output.with_suffix(".s"))
        self._assemble(target, output)

    def _amd_from(self, ir: str, target: Target, mode: tuple[str, ...], output: Path) -> None:
        source = output.with_suffix(".in.ll")
        # LLVM writes these, but cannot read them.
        source.write_text(re.sub(r"(?m)^uselistorder ptr asm .*\n", "", ir))
        command = (
            *(*self.clang, "-cc1", "-triple", "amdgcn-amd-amdhsa", "-target-cpu", target.cpu),
            *(*_BRIEF, "-x", "ir", _CONTRACT, *mode, *_optimised(target)),
            *(str(source), "-o", str(output)),
        )
        _run(command)
        source.unlink()

    def amd_from_assembly(
        self, assembly: str, origin: Target, target: Target, output: Path
    ) -> None:
        """Writes the same files from the assembly of a target with the same instructions.

        Only the name of the target and the version of the code object are others.
        """
        for word, old, new in (
            ("amdgcn-amd-amdhsa--", origin.cpu, target.cpu),
            (".amdhsa_code_object_version ", *map(_code_object_version, (origin, target))),
        ):
            assembly = re.sub(rf"({re.escape(word)}){re.escape(old)}\b", rf"\g<1>{new}", assembly)
        output.with_suffix(".s").write_text(assembly)
        self._assemble(target, output)

    def _assemble(self, target: Target, output: Path) -> None:
        assembly, obj = output.with_suffix(".s"), output.with_suffix(".o")
        cpu = ("-target-cpu", target.cpu, "-triple", "amdgcn-amd-amdhsa")
        _run((*self.clang, "-cc1as", *cpu, "-filetype", "obj", str(assembly), "-o", str(obj)))
        code = str(output.with_suffix(".co"))
        _run((*self.lld, "-shared", "--no-undefined", "-s", str(obj), "-o", code))
        obj.unlink()

    def nvidia(self, unit: TranslationUnit, target: Target, output: Path) -> None:
        """Writes `output`.ptx."""
        ptx = output.with_suffix(".ptx")
        self._front_end(unit, target, ("-S", "-O3"), ptx)
        if int(target.name.removeprefix("sm_")) >= 90:
            ptx.write_text(wait_for_previous(ptx.read_text()))

    def host(self, unit: TranslationUnit, target: Target, entries: str, output: Path) -> None:
        """Writes the shared library `output`.so; `entries` is C++ that follows the source."""
        wrapper, obj = output.with_suffix(".cc"), output.with_suffix(".o")
        wrapper.write_text(_host_source(unit, entries))
        command = (*self._host_front_end(unit, target), "-emit-obj", str(wrapper), "-o", str(obj))
        _run(command)
        _run((*self.lld, "-shared", str(obj), "-o", str(output.with_suffix(".so"))))
        obj.unlink()

    def _host_front_end(self, unit: TranslationUnit, target: Target) -> tuple[str, ...]:
        return (
            *(*self.clang, "-cc1", "-triple", _HOST_TRIPLE, "-target-cpu", target.cpu, "-O2"),
            *("-pic-level", "2", "-mrelocation-model", "pic", "-debug-info-kind=line-tables-only"),
            *("-dwarf-version=4", "-x", "c++"),
            *_LANGUAGE,
            "-Wno-pass-failed",  # a loop that is not unrolled matters on GPUs only
            *_CHECKED,
            *_defines(unit, target),
        )

    def _front_end(
        self, unit: TranslationUnit, target: Target, mode: tuple[str, ...], output: Path | str
    ) -> str:
        triple = "amdgcn-amd-amdhsa" if target.platform is Platform.AMD else "nvptx64-nvidia-cuda"
        features = [flag for name in target.features for flag in ("-target-feature", name)]
        command = (
            *(*self.clang, "-cc1", "-triple", triple, "-target-cpu", target.cpu, *features),
            *_DEVICE,
            *_LANGUAGE,
            *_BRIEF,
            *mode,
            *_defines(unit, target),
            *(str(unit.source), "-o", str(output)),
        )
        return _run(command)


def without_places(ir: str) -> str:
    """Returns LLVM IR as text without the name of its source and where in it assembly stands."""
    ir = re.sub(r"(?m)^(; ModuleID|source_filename) = .*\n", "", ir)
    places = set(re.findall(r", !srcloc !(\d+)", ir))
    ir = re.sub(r", !srcloc !\d+", "", ir)
    return re.sub(r"(?m)^!(\d+) = .*\n", lambda line: "" if line[1] in places else line[0], ir)


def wait_for_previous(ptx: str) -> str:
    """Returns PTX for sm_90 or later whose kernels begin by waiting for the kernel before them.

    So they may be launched while that still runs, which the nvidia platform does with a module that
    has this instruction (programmatic dependent launch, CUDA's programming guide). It is written
    here and not in the sources as none may lack it: the kernel after one that does not wait could
    begin before the one in front of that has ended. Kernels begin with it, but for those whose
    sources say what comes before (rf::wait_for_previous).
    """
    head, *kernels = re.split(r"(?m)^(?=\.visible \.entry )", ptx)
    return "".join((head, *map(_waiting, kernels)))


def _waiting(kernel: str) -> str:
    """Returns the PTX of a kernel that waits, at its beginning unless it does already."""
    if _WAIT in kernel:
        return kernel
    waiting, count = re.subn(r"(?m)^// %bb\.0:.*\n", rf"\g<0>\t{_WAIT}\n", kernel, count=1)
    if not count:
        raise CompileError("the beginning of a kernel was not found in its PTX")
    return waiting


def interface_target(wave: int) -> Target:
    """Returns the target whose code tells the interfaces of kernels whose waves are so wide."""
    cpu = {32: "gfx1100", 64: "gfx942"}[wave]
    return Target(cpu, Platform.AMD, wave, cpu)


def _host_source(unit: TranslationUnit, entries: str) -> str:
    return f'#include "{unit.source}"\n#include "rf/platform/host_entry.h"\n{entries}'


def _optimised(target: Target) -> tuple[str, ...]:
    # 5 loads on older ROCm releases too.
    version = f"-mcode-object-version={_code_object_version(target)}"
    return ("-O3", version, "-fatomic-ignore-denormal-mode")


def _code_object_version(target: Target) -> str:
    return "6" if target.is_generic else "5"  # generic targets came with 6


def _defines(unit: TranslationUnit, target: Target) -> tuple[str, ...]:
    defines = (f"RF_WAVE={target.wave}", *unit.defines)
    headers = (option for header in unit.headers for option in ("-include", header))
    return (f"-I{INCLUDE_DIR}", *(f"-D{define}" for define in defines), *headers)


def find_zig() -> str:
    """Returns the path of the `zig` program of the `ziglang` package.

    Raises:
        CompileError: the package is not installed.
    """
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise CompileError(
            "the kernels are compiled with the `ziglang` package: pip install 'ziglang==0.17.*'"
        )
    return str(Path(spec.origin).parent / "zig")


def find_compiler(clang: str | None) -> Compiler:
    """Returns the compiler at `clang`, or that of $ROCMFORGE_HIP_CLANG, or the one in `ziglang`.

    Raises:
        CompileError: there is none.
    """
    clang = clang or os.environ.get("ROCMFORGE_HIP_CLANG")
    if clang is None:
        zig = find_zig()
        return Compiler((zig, "clang"), (zig, "ld.lld"), _version((zig, "clang")), is_pinned=True)
    path = shutil.which(clang)
    if path is None:
        raise CompileError(f"no compiler at {clang!r}")
    lld = Path(path).resolve().parent / "ld.lld"
    if not lld.exists():
        raise CompileError(
            f"{path} has no ld.lld next to it: name the clang of a ROCm installation"
        )
    return Compiler((path,), (str(lld),), _version((path,)))


def _version(clang: tuple[str, ...]) -> str:
    """Returns what the compiler says of itself but for its place, which changes no output.

    pip builds with a compiler that it has just installed in a folder of a random name.
    """
    lines = _run((*clang, "--version")).splitlines()
    return "\n".join(line for line in lines if not line.startswith("InstalledDir"))


def compile_library(sources: Sequence[Path], include: Sequence[Path], output: Path) -> None:
    """Links C or C++ sources into a shared library that runs on glibc 2.28 and later.

    Raises:
        CompileError: the compiler rejects a source.
    """
    is_cpp = any(path.suffix == ".cpp" for path in sources)
    command = (
        *(find_zig(), "c++" if is_cpp else "cc", "-target", "x86_64-linux-gnu.2.28"),
        *("-shared", "-fPIC", "-std=c++20" if is_cpp else "-std=c11", "-O2", "-march=x86_64_v3"),
        *("-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-g0", "-flto"),
        *(f"-I{path}" for path in include),
        *map(str, sources),
        *("-o", str(output), f"-Wl,-soname,{output.name}", "-Wl,-Bsymbolic"),
    )
    _run(command)


def _run(command: tuple[str, ...], source: str | None = None) -> str:
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(
            f"{done.stderr.strip() or done.stdout.strip()}\n  in: {' '.join(command)}"
        )
    return done.stdout
