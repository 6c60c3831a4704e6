"""What the compiler made of the kernels, for AMD targets that are not here to run them.

`--kernel-targets` chooses the targets; they are compiled if need be. CI takes all of them, and
compiles them while other tests run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest

from kernels.builder import Builder
from kernels.compiler import find_compiler
from kernels.report import KernelReport, report_unit
from kernels.table import read_table
from kernels.targets import Platform, Target, select
from tests.support.operands.weights import QUANTISED_TYPES

# Whichever test asks first waits for what is not compiled yet.
pytestmark = [pytest.mark.late, pytest.mark.timeout(900)]

LDS_LIMIT = 64 << 10
QUANTISED = f"({'|'.join(QUANTISED_TYPES)})"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test once per chosen target."""
    names = metafunc.config.getoption("--kernel-targets")
    targets = [target for target in select(names) if target.platform is Platform.AMD]
    metafunc.parametrize("target", targets, ids=[target.name for target in targets])


@cache
def reports(target: Target) -> tuple[KernelReport, ...]:
    """The reports of all kernels for a target."""
    builder = Builder(find_compiler(None))
    return tuple(
        report
        for source in read_table()
        for unit in source.translation_units
        if unit.is_for(target)
        for report in report_unit(builder, unit, target)
    )


def named(target: Target, pattern: str) -> Iterator[KernelReport]:
    """The reports of the kernels with such a name; there must be some."""
    matches = [report for report in reports(target) if re.fullmatch(pattern, report.kernel)]
    assert matches, f"no kernel matches {pattern}"
    return iter(matches)


def has_matrix_instructions(target: Target) -> bool:
    """WMMA from RDNA3 on, MFMA on CDNA; Vega, RDNA and RDNA2 have neither."""
    return not target.cpu.startswith("gfx10") and target.cpu != "gfx906"


def has_dot_products(target: Target) -> bool:
    """Of int8, in one instruction; RX 5000 has none."""
    return target.cpu != "gfx10-1-generic"


def test_registers_suffice(target: Target) -> None:
    resources = ("vgpr_spills", "sgpr_spills", "scratch_bytes")
    spilling = {
        report.kernel: {name: report.resources[name] for name in resources}
        for report in reports(target)
        if any(report.resources[name] for name in resources)
    }
    assert not spilling


def test_lds_is_within_what_a_block_may_have(target: Target) -> None:
    over = {r.kernel: r.resources["lds_bytes"] for r in reports(target)}
    assert {name: size for name, size in over.items() if size > LDS_LIMIT} == {}


def test_wave_size_is_that_of_the_target(target: Target) -> None:
    assert {report.resources["wave_size"] for report in reports(target)} == {target.wave}


def test_arguments_lie_where_they_lie_on_other_targets(target: Target) -> None:
    reference = select("gfx1100")[0]
    expected = {report.kernel: report.resources["args"] for report in reports(reference)}
    assert {report.kernel: report.resources["args"] for report in reports(target)} == expected


def test_quantised_gemv_uses_int8_dot_products(target: Target) -> None:
    for report in named(target, rf"rf_gemv_{QUANTISED}_r\d"):
        assert (report.instructions["dot"] > 0) == has_dot_products(target), report.kernel


def test_products_of_many_rows_use_matrix_instructions(target: Target) -> None:
    attention = r"attention_(prefill|full)_(?!reduce).*"
    chunks = r"gated_delta_(solve|chunks)|mamba_(scores|chunks)"
    for report in named(target, rf"rf_(gemm_(?!sum).*|{attention}|lora_.*|{chunks})"):
        used = report.instructions["matrix"] > 0
        assert used == has_matrix_instructions(target), report.kernel


def test_inner_loops_load_sixteen_bytes_at_a_time(target: Target) -> None:
    products = r"gemv|gemm(?!_int8)"
    inner = rf"({products}|attention_decode|attention_prefill_f16|attention_full)_.*\d|lora_.*"
    rows = r"(add_(shared_)?)?(layer|rms)_norm|gated_(norm|squares)|joint_norm"
    rows += r"|gelu_(tanh_|quick_)?half|rope_half|sum_rows|embed_(add|between)_.*"
    states = r"short_conv|gated_delta(_step|_solve|_chunks)?|mamba(_step|_scores|_chunks)?"
    for report in named(target, rf"rf_({inner}|{rows}|{states})"):
        assert report.instructions["load16"] > 0, report.kernel
