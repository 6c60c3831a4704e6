"""Reports what the compiler made of kernels: `python -m kernels.report --targets gfx1100,gfx942`.

One line per kernel and target: registers, LDS, how many waves that lets run at once, and which
instructions the code consists of. tests/kernels/compiled/test_metadata.py holds the same numbers to
limits.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernels.builder import Builder
from kernels.compiler import find_compiler
from kernels.table import TranslationUnit, read_table
from kernels.targets import Platform, Target, select

# All begin with the end of the line before: text that every match has is searched for fastest.
_FUNCTION = re.compile(r"\n(\w+): +; @\1\n")
_FUNCTION_END = "\n.Lfunc_end"
_INSTRUCTION = re.compile(r"\n\t([a-z]\w+)")

# Column of the report -> instructions it counts.
INSTRUCTIONS = {
    "matrix": re.compile(r"v_(wmma|swmmac|mfma|smfmac)_"),
    "dot": re.compile(r"v_dot[248]"),
    "load16": re.compile(r"(global|buffer)_load_(b128|dwordx4)"),
    "load": re.compile(r"(global|buffer|flat)_load_"),
    "store": re.compile(r"(global|buffer|flat)_store_"),
    "lds": re.compile(r"ds_(?!swizzle|bpermute|permute)"),
    "lane": re.compile(r".*_dpp|ds_(swizzle|bpermute|permute)|v_permlane|v_readlane"),
    "scratch": re.compile(r"scratch_"),
    "all": re.compile(r""),
}


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel on one AMD target."""

    kernel: str
    target: Target
    resources: dict[str, Any]  # the kernel's entry in the manifest
    instructions: dict[str, int]  # by column of INSTRUCTIONS

    @property
    def waves_per_simd(self) -> int:
        """Waves that fit on a SIMD with these registers and static LDS."""
        return min(self._waves_by_registers(), self._waves_by_lds())

    def _waves_by_registers(self) -> int:
        # AMDGPUUsage, "VGPR allocation granularity"; sizes from the ISA documents.
        if self.target.cpu in ("gfx906", "gfx908"):
            registers, granularity, most = 256, 4, 10
        elif self.target.wave == 64:
            registers, granularity, most = 512, 8, 8
        elif _family(self.target) == 10 or self.target.cpu in ("gfx1102", "gfx1103", "gfx1150"):
            registers, granularity, most = 1024, 16, 16
        else:
            registers, granularity, most = 1536, 24, 16
        vgprs = int(self.resources["vgprs"])
        used = max(1, -(-vgprs // granularity)) * granularity
        return min(most, registers // used)

    def _waves_by_lds(self) -> int:
        lds, threads = int(self.resources["lds_bytes"]), int(self.resources["max_threads"])
        if not lds:
            return 16
        # Four SIMDs share 64 KiB on CDNA (160 on gfx950) and 128 KiB on RDNA.
        shared = {"gfx950": 160}.get(self.target.cpu, 64 if self.target.wave == 64 else 128) << 10
        waves_per_block = -(-threads // self.target.wave)
        return max(1, shared // lds * waves_per_block // 4)


def _family(target: Target) -> int:
    digits = target.cpu.removeprefix("gfx").split("-")[0]
    return int(digits[:-2]) if len(digits) > 2 else int(digits)


def kernel_code(assembly: str) -> dict[str, list[str]]:
    """Returns the instructions of each function in some assembly, by the function's name."""
    code = {}
    for label in _FUNCTION.finditer(assembly):
        begin = label.end() - 1
        end = assembly.index(_FUNCTION_END, begin)
        code[label[1]] = _INSTRUCTION.findall(assembly, begin, end)
    return code


def report_unit(builder: Builder, unit: TranslationUnit, target: Target) -> Iterator[KernelReport]:
    """Yields the reports of all kernels of a translation unit, compiled now if need be."""
    product = builder.product(unit, target)
    code = kernel_code(product.assembly.read_text())
    for kernel, resources in product.kernels().items():
        used = Counter(code[kernel]).items()
        counts = {
            column: sum(count for name, count in used if pattern.match(name))
            for column, pattern in INSTRUCTIONS.items()
        }
        yield KernelReport(kernel, target, resources, counts)


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kernels.report", description=__doc__)
    parser.add_argument("--targets", default="gfx942,gfx1100,gfx1201")
    parser.add_argument("--kernels", default="*", help="pattern of names, e.g. rf_gemv_q4_*")
    options = parser.parse_args()
    builder = Builder(find_compiler(None))
    columns = ("vgprs", "sgprs", "lds", "waves", "spills", *INSTRUCTIONS)
    print(f"{'kernel':40} {'target':16}", *(f"{column:>7}" for column in columns))
    for source in read_table():
        if not fnmatch.filter(source.kernels, options.kernels):
            continue
        for unit in source.translation_units:
            for target in select(options.targets):
                if target.platform is not Platform.AMD or not unit.is_for(target):
                    continue
                for report in report_unit(builder, unit, target):
                    if fnmatch.fnmatch(report.kernel, options.kernels):
                        print(_line(report))
    return 0


def _line(report: KernelReport) -> str:
    resources = report.resources
    values = (
        resources["vgprs"],
        resources["sgprs"],
        resources["lds_bytes"],
        report.waves_per_simd,
        resources["vgpr_spills"] + resources["sgpr_spills"],
        *report.instructions.values(),
    )
    numbers = " ".join(f"{value:7}" for value in values)
    return f"{report.kernel:40} {report.target.name:16} {numbers}"


if __name__ == "__main__":
    sys.exit(main())
