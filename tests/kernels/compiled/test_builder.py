"""Kernels are compiled once, whoever asks; code taken from another target is what it would be."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from threading import Barrier

import pytest

from kernels.build import build, install
from kernels.builder import CACHE_DIR, Builder, Product, build_library
from kernels.cache import make
from kernels.code_object import kernel_metadata
from kernels.compiler import CompileError, find_compiler, wait_for_previous
from kernels.report import kernel_code
from kernels.sources import Sources
from kernels.table import TranslationUnit, read_table
from kernels.targets import TARGETS, Platform, Target, select
from tests.support.launches.clang import counting_compiler

# Whose code carries the workaround of a bug that only the target has from which it is taken.
RELIEVED = ("gfx1101", "gfx1103")
TWINS = [target for target in TARGETS if target.code_of and target.name not in RELIEVED]
FROM_IR = [t for t in TARGETS if t.platform is Platform.AMD and not t.code_of]


def unit(name: str) -> TranslationUnit:
    return next(u for source in read_table() for u in source.translation_units if u.name == name)


def compiled_at_once(compiled: TranslationUnit, target: Target) -> Product:
    """What the compiler writes from a source, for this target alone.

    Kept as products are, by all that it is made of: else it would be most of what this file takes.
    """
    compiler = find_compiler(None)
    sources = Sources(compiler, CACHE_DIR)
    made_from = (asdict(target), sources.text(compiled, target))
    directory = sources.directory(f"at-once-{target.name}", compiled, *made_from)
    make(directory, lambda scratch: compiler.amd(compiled, target, scratch / compiled.name))
    return Product(compiled, target, directory)


def compiled_kernels(name: str, target: str) -> list[str]:
    """The PTX of each kernel of a translation unit, from its name on."""
    product = Builder(find_compiler(None)).product(unit(name), select(target)[0])
    return product.code.read_text().split(".visible .entry ")[1:]


@pytest.mark.parametrize("name", ["rms_norm", "gemm-q4_k", "attention_decode-d64"])
@pytest.mark.parametrize("target", TWINS, ids=[target.name for target in TWINS])
def test_code_of_another_target_is_what_the_compiler_writes(target: Target, name: str) -> None:
    assert_is_what_the_compiler_writes(unit(name), target)


@pytest.mark.parametrize("name", ["rms_norm", "gemv-q6_k", "attention_decode-d64"])
@pytest.mark.parametrize("target", select(",".join(RELIEVED)), ids=RELIEVED)
def test_code_with_the_workaround_of_a_bug_differs_in_scalar_registers(
    target: Target, name: str
) -> None:
    """Other numbers of these change the order of a few instructions, and what moves a value."""
    compiled = unit(name)
    whole = compiled_at_once(compiled, target)
    metadata = kernel_metadata(whole.code.read_bytes())
    written = kernel_code(whole.assembly.read_text())
    product = Builder(find_compiler(None)).product(compiled, target)
    code = kernel_code(product.assembly.read_text())
    for kernel, resources in kernel_metadata(product.code.read_bytes()).items():
        others = {key for key in resources if resources[key] != metadata[kernel].get(key)}
        assert others <= {".sgpr_count"}
        taken, own = Counter(code[kernel]), Counter(written[kernel])
        assert ((taken - own) + (own - taken)).total() <= len(code[kernel]) // 100


# A small one, one with inline assembly, one whose code depends on the order of uses in the IR.
@pytest.mark.parametrize("name", ["rms_norm", "gemv-q6_k", "lora"])
@pytest.mark.parametrize("target", FROM_IR, ids=[target.name for target in FROM_IR])
def test_code_from_ir_of_this_or_another_target_is_what_the_compiler_writes(
    target: Target, name: str
) -> None:
    assert_is_what_the_compiler_writes(unit(name), target)


def assert_is_what_the_compiler_writes(compiled: TranslationUnit, target: Target) -> None:
    """The build's product, which is there already where all targets have been built."""
    written = compiled_at_once(compiled, target)
    product = Builder(find_compiler(None)).product(compiled, target)
    assert kernel_code(product.assembly.read_text()) == kernel_code(written.assembly.read_text())
    assert product.code.read_bytes() == written.code.read_bytes()


def test_another_compiler_compiles_each_target(tmp_path: Path) -> None:
    """That the code is the same was measured with ours only."""
    program, log = counting_compiler(tmp_path)
    compiler = replace(find_compiler(None), clang=(str(program),), is_pinned=False)
    builder = Builder(compiler, tmp_path / "cache")
    for target in select("gfx1101,gfx1201"):
        builder.product(unit("softcap"), target)
    compiled = [line for line in log.read_text().splitlines() if " -O3 " in line]
    assert [re.findall(r"-target-cpu (\w+)", line) for line in compiled] == [
        ["gfx1101"],
        ["gfx1201"],
    ]


def test_who_wants_the_same_kernels_at_once_compiles_them_once(tmp_path: Path) -> None:
    program, log = counting_compiler(tmp_path)
    compiler = replace(find_compiler(None), clang=(str(program),))
    target, wanted = select("gfx1030")[0], unit("softcap")

    def make() -> bytes:
        mine = Builder(compiler, tmp_path / "cache")
        product = mine.product(wanted, target)
        install([product], target, compiler, tmp_path / "lib")
        return product.code.read_bytes()

    with ThreadPoolExecutor(4) as pool:
        images = [done.result() for done in [pool.submit(make) for _ in range(4)]]
    assert len(set(images)) == 1
    steps = [line for line in log.read_text().splitlines() if line.startswith("-cc1")]
    # Two texts, that of the target whose interface it is and its own; the interface; the IR; the
    # assembly; the object.
    assert len(steps) == 6, steps
    assert sorted(os.listdir(tmp_path / "lib/gfx1030")) == ["manifest.json", "softcap.co"]


def test_who_wants_a_library_at_once_gets_one_file(tmp_path: Path) -> None:
    source = tmp_path / "nothing.c"
    source.write_text("int nothing;")
    together = Barrier(8)

    def file_number(path: Path) -> int:
        together.wait()
        build_library([source], (), path)
        return path.stat().st_ino

    with ThreadPoolExecutor(8) as pool:
        for n in range(10):
            assert len(set(pool.map(file_number, [tmp_path / str(n) / "nothing.so"] * 8))) == 1


def test_a_library_may_leave_kernels_out(tmp_path: Path) -> None:
    build(
        select("gfx1030"),
        find_compiler(None),
        lib=tmp_path,
        wanted=lambda unit: unit.name == "softcap",
    )
    assert sorted(os.listdir(tmp_path / "gfx1030")) == ["manifest.json", "softcap.co"]
    manifest = json.loads((tmp_path / "gfx1030/manifest.json").read_text())
    assert list(manifest["kernels"]) == ["rf_softcap"]


@pytest.mark.parametrize(("name", "waits"), [("sm_80", False), ("sm_90", True)])
def test_kernels_begin_by_waiting_where_they_may_be_launched_early(name: str, waits: bool) -> None:
    kernels = compiled_kernels("attention_reduce", name)
    # Declarations and labels end in other ways.
    instructions = [re.findall(r"^\t(?!\.)(\S.*;)", kernel, re.MULTILINE) for kernel in kernels]
    assert len(instructions) == 2
    assert {each[0] == "griddepcontrol.wait;" for each in instructions} == {waits}


@pytest.mark.parametrize(("name", "lds_bytes"), [("sm_80", 0), ("sm_90", 96 << 10)])
def test_the_manifest_says_what_a_launch_has_to_give(name: str, lds_bytes: int) -> None:
    product = Builder(find_compiler(None)).product(unit("attention_prefill-d128"), select(name)[0])
    found = {kernel: entry["dynamic_lds_bytes"] for kernel, entry in product.kernels().items()}
    assert found == {
        "rf_attention_prefill_f16_d128": lds_bytes,
        "rf_attention_prefill_int8_d128": 0,
        "rf_attention_prefill_k8v4_d128": 0,
    }


@pytest.mark.parametrize(
    ("name", "before"),
    [("gemv-q4_k", {6}), ("gemm_int8-q4_k", {18}), ("rms_norm", {0, 4, 5})],
    ids=["two_rows_of_weights", "a_step_of_weights", "weights_of_a_norm_and_a_factor"],
)
def test_weights_alone_are_read_before_the_wait(name: str, before: set[int]) -> None:
    found = set()
    for kernel in compiled_kernels(name, "sm_90"):
        early, wait, late = kernel.partition("griddepcontrol.wait;")
        assert wait
        found.add(len(re.findall(r"\tld\.global", early)))
        assert not re.search(r"\t(?:st|atom|red)\.global", early)
        assert re.search(r"\tld\.global", late)
    assert found == before


@pytest.mark.parametrize("name", ["rms_norm", "gemv-q4_k"])
def test_kernels_wait_and_let_others_begin_only_where_there_is_such_a_thing(name: str) -> None:
    assert not any("griddepcontrol" in kernel for kernel in compiled_kernels(name, "sm_80"))


@pytest.mark.parametrize(
    ("name", "lets"),
    [("quantize_act", "rf_quantize_act"), ("gemv-q4_k", "rf_gemv_q4_k_r1"), ("gemm_sum", "")],
    ids=["short", "of_one_row", "of_prefills"],
)
def test_kernels_of_small_steps_let_the_next_one_begin_after_they_waited(
    name: str, lets: str
) -> None:
    found = {
        kernel.partition("(")[0]
        for kernel in compiled_kernels(name, "sm_90")
        if "griddepcontrol.launch_dependents;" in kernel.partition("griddepcontrol.wait;")[2]
    }
    assert found == set(lets.split())
    assert all(kernel.count("launch_dependents") < 2 for kernel in compiled_kernels(name, "sm_90"))


def test_only_what_was_measured_is_compiled_for_a_number_of_blocks() -> None:
    found = {}
    for name in ("gemm-mxfp4", "gemm-q4_k", "gemm_few_rows-q4_k", "gemm_paired-q4_k"):
        product = Builder(find_compiler(None)).product(unit(name), select("sm_90")[0])
        for kernel in product.code.read_text().split(".visible .entry ")[1:]:
            blocks = re.findall(r"\.minnctapersm (\d+)", kernel)
            found[kernel.partition("(")[0]] = [int(count) for count in blocks]
    assert {kernel: count for kernel, count in found.items() if count} == {
        "rf_gemm_mxfp4_m32": [4],
        "rf_gemm_mxfp4_m64": [2],
        "rf_gemm_q4_k_m64": [2],
        "rf_gemm_q4_k_r16": [2],
        "rf_gemm_q4_k_r32": [2],
        "rf_gemm_q4_k_r64": [2],
        "rf_gemm_q4_k_r128": [2],
    }
    assert len(found) == 10


def test_a_library_has_kernels_of_its_target_only(tmp_path: Path) -> None:
    build(
        select("gfx1100,sm_90"),
        find_compiler(None),
        lib=tmp_path,
        wanted=lambda unit: unit.name in ("softcap", "gemm_wide-q4_k"),
    )
    for target, kernels in (
        ("gfx1100", ["rf_softcap"]),
        ("sm_90", [*(f"rf_gemm_wide_q4_k_r{rows}" for rows in (256, 272)), "rf_softcap"]),
    ):
        manifest = json.loads((tmp_path / target / "manifest.json").read_text())
        assert list(manifest["kernels"]) == kernels


def test_blocks_of_very_many_rows_multiply_in_warpgroups() -> None:
    kernels = compiled_kernels("gemm_wide-q4_k", "sm_90")
    product = Builder(find_compiler(None)).product(unit("gemm_wide-q4_k"), select("sm_90")[0])
    entries = product.kernels()
    # Instructions of two steps.
    tiles = (256, {256: 8}, 160), (272, {256: 8, 16: 8}, 170)
    for tile, counts, lds in tiles:
        name = f"rf_gemm_wide_q4_k_r{tile}"
        (kernel,) = (text for text in kernels if text.startswith(f"{name}("))
        found = Counter(int(n) for n in re.findall(r"mma_async\.sync\.aligned\.m64n(\d+)k", kernel))
        assert found == counts
        entry = entries[name]
        assert (entry["max_threads"], entry["dynamic_lds_bytes"]) == (256, lds << 10)


def test_a_kernel_whose_beginning_is_not_found_is_an_error() -> None:
    with pytest.raises(CompileError, match="beginning of a kernel"):
        wait_for_previous(".visible .entry rf_x(\n)\n{\n\tret;\n}\n")
