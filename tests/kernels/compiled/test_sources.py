"""What a change to a source has compiled again: no more than what it may change."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernels import compiler, table
from kernels.builder import Builder, Product
from kernels.cache import make
from kernels.compiler import find_compiler, without_places
from kernels.sources import Sources
from kernels.table import INCLUDE_DIR, KERNELS_DIR, TranslationUnit
from kernels.targets import select
from tests.support.launches.clang import counting_compiler

SOURCE = """
#include "rf/platform.h"
#include "rf/idle.h"

extern "C" __global__ __launch_bounds__(64) void scale(float* y, float factor) {
  float x = y[threadIdx.x];
  idle();
  y[threadIdx.x] = x * factor;
}
"""
# The compiler notes where in all that it has read the assembly stands.
HEADER = """
inline __device__ void idle() {
#if defined(RF_AMD)
  asm volatile("s_nop 0");
#endif
}
"""


class Project:
    """A source of kernels and a compiler that counts; headers are a copy."""

    def __init__(self, folder: Path) -> None:
        self.headers, self._cache = folder / "include", folder / "cache"
        shutil.copytree(INCLUDE_DIR, self.headers)
        self.unit = TranslationUnit("scale", folder / "scale.hip", ())
        self.unit.source.write_text(SOURCE)
        self.idle = self.headers / "rf/idle.h"
        self.idle.write_text(HEADER)
        program, self._log = counting_compiler(folder)
        self._compiler = replace(find_compiler(None), clang=(str(program),))

    def build(self, target: str) -> tuple[Product, list[str]]:
        """The product, and which steps of the compiler it took."""
        self._log.write_text("")
        product = Builder(self._compiler, self._cache).product(self.unit, *select(target))
        return product, [_step(line) for line in self._log.read_text().splitlines()]

    def change(self, path: Path, old: str, new: str) -> None:
        """Replaces text in a file that has it."""
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))


def _step(command: str) -> str:
    words = command.split()
    if words[0] == "-cc1as":
        return "assemble"
    if "-E" in words:
        return "text"
    if "-O0" in words:
        return "interface"
    return "ir" if "-emit-llvm" in words and "-disable-llvm-passes" in words else "code"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path)
    for module in (table, compiler):
        monkeypatch.setattr(module, "INCLUDE_DIR", made.headers)
    return made


def test_all_of_it_is_compiled_once(project: Project) -> None:
    first, steps = project.build("gfx1030")
    assert steps == ["text", "interface", "text", "ir", "code", "assemble"]
    again, steps = project.build("gfx1030")
    assert (again, steps) == (first, [])


@pytest.mark.parametrize("where", ["source", "header"])
def test_comments_and_layout_compile_nothing(project: Project, where: str) -> None:
    first, _ = project.build("gfx1030")
    path = project.unit.source if where == "source" else project.headers / "rf/platform.h"
    lines = path.read_text().split("\n")
    path.write_text(
        "// Another comment.\n\n" + "\n \n".join(lines[:2]) + "\n".join(["", *lines[2:]])
    )
    again, steps = project.build("gfx1030")
    assert (again, set(steps)) == (first, {"text"})


@pytest.mark.parametrize("target", ["gfx1030", "gfx1102", "sm_80", "host-w32"])
def test_headers_in_another_folder_compile_nothing(project: Project, target: str) -> None:
    first, _ = project.build(target)
    shutil.move(project.headers / "rf/platform/common.h", project.headers / "rf/common.h")
    header = project.headers / "rf/platform.h"
    project.change(header, '"rf/platform/common.h"', '"rf/common.h"')
    again, steps = project.build(target)
    assert (again, set(steps)) == (first, {"text"})


def test_functions_that_nobody_calls_are_read_alone(project: Project) -> None:
    first, _ = project.build("gfx1030")
    header = project.headers / "rf/platform.h"
    project.change(
        header, "namespace rf {", "inline int twice(int x) { return 2 * x; }\nnamespace rf {"
    )
    again, steps = project.build("gfx1030")
    assert (again, set(steps)) == (first, {"text", "interface", "ir"})


@pytest.mark.parametrize("target", ["gfx1030", "gfx1103", "gfx1200", "sm_80", "host-w32"])
def test_what_is_computed_differently_is_compiled(project: Project, target: str) -> None:
    first, _ = project.build(target)
    project.change(project.unit.source, "x * factor", "x + factor")
    again, steps = project.build(target)
    assert "code" in steps
    assert again.code.read_bytes() != first.code.read_bytes()


@pytest.mark.parametrize("target", ["gfx1030", "sm_80", "host-w32"])
def test_names_of_arguments_are_those_of_the_source(project: Project, target: str) -> None:
    project.build(target)
    project.unit.source.write_text(SOURCE.replace("factor", "scale"))
    product, _ = project.build(target)
    assert [each["name"] for each in product.kernels()["scale"]["args"]] == ["y", "scale"]


def test_the_hosts_code_knows_its_lines(project: Project) -> None:
    """Reports of mistakes tell them."""
    first, _ = project.build("host-w32")
    project.change(project.unit.source, "  float x", "\n  float x")
    again, steps = project.build("host-w32")
    assert again.directory != first.directory
    assert steps.count("code") == 1


def test_ir_of_a_target_is_not_that_of_one_whose_source_differs(project: Project) -> None:
    """gfx1200 shares the optimised IR of gfx1100 in units that read the same for both."""
    sources = Sources(find_compiler(None), project.headers.parent / "cache")
    origin, target = select("gfx1100,gfx1200")
    assert sources.text(project.unit, origin) == sources.text(project.unit, target)
    project.change(project.idle, "defined(RF_AMD)", "defined(__gfx1200__)")
    assert sources.text(project.unit, origin) != sources.text(project.unit, target)
    product, _ = project.build("gfx1200")
    assert "s_nop 0" in product.assembly.read_text()
    product, _ = project.build("gfx1100")
    assert "s_nop 0" not in product.assembly.read_text()


def test_places_of_assembly_are_left_out_and_other_numbers_stay() -> None:
    ir = """; ModuleID = 'a.hip'
source_filename = "/folder/a.hip"
  call void asm sideeffect "s_nop 0", ""() #3, !srcloc !7
  %x = load ptr, ptr %y, align 8, !align !8
!7 = !{i64 1234}
!8 = !{i64 16}
"""
    assert without_places(ir).splitlines() == [
        '  call void asm sideeffect "s_nop 0", ""() #3',
        "  %x = load ptr, ptr %y, align 8, !align !8",
        "!8 = !{i64 16}",
    ]


def test_the_recipe_names_every_script_that_decides() -> None:
    """All that `builder.py` and `sources.py` import of the build, but for tables and the cache."""
    imported = {
        name
        for script in ("builder.py", "sources.py")
        for name in re.findall(
            r"^from kernels\.(\w+) import", (KERNELS_DIR / script).read_text(), re.M
        )
    }
    recipe = re.search(r"^_RECIPE = \(([^)]*)\)", (KERNELS_DIR / "sources.py").read_text(), re.M)
    assert recipe is not None
    named = {name.removesuffix(".py") for name in re.findall(r'"(.*?)"', recipe[1])}
    # These are in the key as what they say of a unit and a target; the cache decides nothing.
    assert named == imported - {"table", "targets", "cache"} | {"builder", "sources"}


def test_what_is_wanted_again_is_dated_anew(tmp_path: Path) -> None:
    """CI deletes what nobody has wanted for a week."""
    folder = tmp_path / "group/unit"
    make(folder, lambda scratch: None)
    long_ago = time.time() - 6 * 24 * 3600
    os.utime(folder, (long_ago, long_ago))
    make(folder, lambda scratch: pytest.fail("it is there"))
    assert time.time() - folder.stat().st_mtime < 3600
