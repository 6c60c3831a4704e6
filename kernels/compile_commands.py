"""Writes compile_commands.json, for editors: `python -m kernels.compile_commands --target gfx942`.

The build calls clang's front end with options of its own (compiler.py), which editors do not know;
these are the same in the words of clang's driver. A source with several translation units gets the
defines of the first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from kernels.builder import ROOT
from kernels.table import INCLUDE_DIR, KERNELS_DIR, read_table
from kernels.targets import Platform, Target, select

OUTPUT = ROOT / "compile_commands.json"
PLATFORM_DIR = KERNELS_DIR / "platform"
HOST_DIR = ROOT / "tests/platform/host"
_WARNINGS = ("-Wall", "-Wextra")


def entries(target: Target) -> Iterator[dict[str, object]]:
    """Yields an entry for each source in C or C++, kernels as for this AMD target."""
    device = (
        *("clang++", "-x", "hip", "--cuda-device-only", f"--offload-arch={target.cpu}"),
        *("-nogpulib", "-nogpuinc", "-std=c++20", "-fdeclspec", f"-DRF_WAVE={target.wave}"),
    )
    for source in read_table():
        unit = source.translation_units[0]
        defines = (f"-D{define}" for define in unit.defines)
        headers = (option for header in unit.headers for option in ("-include", header))
        yield _entry(unit.source, (*device, *defines, f"-I{INCLUDE_DIR}", *headers))
    includes = (f"-I{HOST_DIR}", f"-I{PLATFORM_DIR}", f"-I{INCLUDE_DIR}")
    for path in sorted(HOST_DIR.glob("*.cpp")):
        yield _entry(path, ("clang++", "-std=c++20", *includes))
    nvidia = PLATFORM_DIR / "nvidia"
    for path in sorted(nvidia.rglob("*.c")):
        yield _entry(path, ("clang", "-std=c11", f"-I{nvidia}", f"-I{PLATFORM_DIR}"))


def _entry(path: Path, command: tuple[str, ...]) -> dict[str, object]:
    arguments = [*command, *_WARNINGS, "-fsyntax-only", str(path)]
    return {"directory": str(ROOT), "file": str(path), "arguments": arguments}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m kernels.compile_commands")
    parser.add_argument("--target", default="gfx1100", help="an AMD target; default %(default)s")
    (target,) = select(parser.parse_args().target)
    if target.platform is not Platform.AMD:
        parser.error(f"{target.name} is no AMD target")
    OUTPUT.write_text(json.dumps(list(entries(target)), indent=1) + "\n")


if __name__ == "__main__":
    main()
