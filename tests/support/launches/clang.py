"""A compiler that tells what it was asked for."""

from __future__ import annotations

from pathlib import Path

from kernels.compiler import find_compiler


def counting_compiler(folder: Path) -> tuple[Path, Path]:
    """Returns a program that runs clang, and the file to which it adds a line each time."""
    program, log = folder / "clang", folder / "log"
    clang = " ".join(find_compiler(None).clang)
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexec {clang} "$@"\n')
    program.chmod(0o755)
    return program, log
