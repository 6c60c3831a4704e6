"""The fences around the arrival of a thread block (rf/last_block.h), on AMD targets.

Their instructions are those of LLVM's AMDGPUUsage, "Memory Model": code sequences of a release and
of an acquire fence at agent scope. No GPU is here to show one that is missing, so the machine code
is read: a wave's stores are released before the barrier in front of the counter, and nothing is
read between the barrier behind it and the acquire.
"""

from __future__ import annotations

import re
from itertools import takewhile

import pytest

from kernels.builder import ROOT, Builder
from kernels.compiler import find_compiler
from kernels.table import TranslationUnit, read_table
from kernels.targets import Platform, Target, select

pytestmark = [pytest.mark.late, pytest.mark.timeout(900)]

ARRIVING = (
    *("attention_decode", "attention_joint_norms", "attention_teams", "norm_route"),
    *("gated_delta_step", "mamba_step", "experts_beside"),
)
"""Sources whose kernels count arrivals."""
FAULTY = ROOT / "tests/platform/faulty"
ARRIVAL = re.compile(r"global_atomic_add.* (glc|sc0|th:TH_ATOMIC_RETURN)\b")
BARRIER = re.compile(r"s_barrier\b|s_barrier_wait")
STORE, LOAD = re.compile(r"(global|flat)_store_"), re.compile(r"(global|flat|buffer|s)_load_")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test once per chosen target."""
    names = metafunc.config.getoption("--kernel-targets")
    targets = [target for target in select(names) if target.platform is Platform.AMD]
    metafunc.parametrize("target", targets, ids=[target.name for target in targets])


def release_of(target: Target) -> tuple[str, ...]:
    """Patterns of the instructions of a release, in their order."""
    if is_cdna3(target):
        return r"buffer_wbl2 sc1", r"s_waitcnt .*vmcnt\(0\)"
    if target.wave == 64:
        return (r"s_waitcnt .*vmcnt\(0\)",)
    if is_rdna4(target):  # of stores alone, or of LDS, too
        return (r"s_wait_storecnt(_dscnt)? 0x0",)
    return (r"s_waitcnt_vscnt null, 0x0",)


def acquire_of(target: Target) -> tuple[str, ...]:
    """Patterns of the instructions of an acquire, in their order."""
    if is_cdna3(target):
        return (r"buffer_inv sc1",)
    if target.wave == 64:
        return (r"buffer_wbinvl1",)
    if is_rdna4(target):
        return (r"global_inv scope:SCOPE_DEV",)
    return r"buffer_gl1_inv", r"buffer_gl0_inv"


def is_cdna3(target: Target) -> bool:
    return target.cpu in ("gfx942", "gfx950", "gfx9-4-generic")


def is_rdna4(target: Target) -> bool:
    return target.cpu.startswith("gfx12")


def lines_of(target: Target) -> list[str]:
    """The instructions of a kernel whose last block reads what the others have written."""
    source = next(source for source in read_table(FAULTY) if source.kernels == {"rf_last_block"})
    return instructions(source.translation_units[0], target)


def instructions(unit: TranslationUnit, target: Target) -> list[str]:
    """The machine code of all kernels of a translation unit."""
    product = Builder(find_compiler(None)).product(unit, target)
    lines = product.assembly.read_text().splitlines()
    return [line.strip() for line in lines if re.match(r"\t[a-z]", line)]


def unfenced(lines: list[str], target: Target) -> list[str]:
    """What is wrong at the arrivals in some machine code."""
    wrong = []
    arrivals = [place for place, line in enumerate(lines) if ARRIVAL.match(line)]
    assert arrivals, "no kernel counts arrivals here"
    for place in arrivals:
        before = lines[:place]
        barrier = max(place for place, line in enumerate(before) if BARRIER.match(line))
        stored = takewhile(lambda line: not STORE.match(line), reversed(lines[:barrier]))
        if not in_order(list(stored)[::-1], release_of(target)):
            wrong.append(f"{lines[place]} at {place}: no release")
        behind = lines[place:]
        barrier = next(place for place, line in enumerate(behind) if BARRIER.match(line))
        unread = list(takewhile(lambda line: not LOAD.match(line), behind[barrier:]))
        if not in_order(unread, acquire_of(target)):
            wrong.append(f"{lines[place]} at {place}: no acquire")
    return wrong


def in_order(lines: list[str], patterns: tuple[str, ...]) -> bool:
    """Whether the patterns match lines one after the other."""
    rest = iter(lines)
    return all(any(re.match(pattern, line) for line in rest) for pattern in patterns)


def test_arrivals_are_fenced(target: Target) -> None:
    assert not unfenced(lines_of(target), target)


@pytest.mark.parametrize("name", ARRIVING)
def test_arrivals_of_every_kernel_are_fenced(target: Target, name: str) -> None:
    source = next(source for source in read_table() if source.name == name)
    for unit in source.translation_units:
        assert not unfenced(instructions(unit, target), target), unit.name


def test_a_fence_that_is_left_out_is_found(target: Target) -> None:
    lines = lines_of(target)
    for patterns, what in ((release_of(target), "release"), (acquire_of(target), "acquire")):
        for pattern in patterns:
            without = [line for line in lines if not re.match(pattern, line)]
            found = unfenced(without, target)
            assert found, f"{pattern} was not missed"
            assert any(line.endswith(f"no {what}") for line in found)
