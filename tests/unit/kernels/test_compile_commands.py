"""Editors are told how each source is compiled, in words that clang's driver takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernels.compile_commands import entries
from kernels.compiler import find_zig
from kernels.table import KERNELS_DIR
from kernels.targets import select

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("target", ["gfx1100", "gfx942"])
def test_every_kernel_compiles_with_its_flags(target: str) -> None:
    found = {Path(str(entry["file"])): entry["arguments"] for entry in entries(select(target)[0])}
    kernels = set((KERNELS_DIR / "src").rglob("*.hip"))
    assert len(kernels) > 20
    for path in kernels:
        arguments = found[path]
        assert isinstance(arguments, list)
        command = (find_zig(), "clang", *arguments[1:])
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), path


def test_libraries_are_there_too() -> None:
    names = {Path(str(entry["file"])).name for entry in entries(select("gfx1100")[0])}
    assert {"memory.cpp", "device.c"} <= names
