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
INSTRUCTION = re.compile(r"\n\t([a-z].*)")
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


@pytest.fixture(scope="module")
def builder() -> Builder:
    return Builder(find_compiler(None))


@pytest.fixture(scope="module")
def units() -> dict[str, tuple[TranslationUnit, ...]]:
    """Those of each source, by its name."""
    return {source.name: source.translation_units for source in read_table()}


@pytest.fixture(scope="module")
def last_block() -> TranslationUnit:
    """A kernel whose last block reads what the others have written."""
    source = next(source for source in read_table(FAULTY) if source.kernels == {"rf_last_block"})
    return source.translation_units[0]


def instructions(builder: Builder, unit: TranslationUnit, target: Target) -> list[str]:
    """The machine code of all kernels of a translation unit."""
    return INSTRUCTION.findall(builder.product(unit, target).assembly.read_text())


def unfenced(lines: list[str], target: Target) -> list[str]:
    """What is wrong at the arrivals in some machine code."""
    wrong = []
    arrivals = [place for place, line in enumerate(lines) if ARRIVAL.match(line)]
    assert arrivals, "no kernel counts arrivals here"
    for place in arrivals:
        barrier = next(at for at in range(place - 1, -1, -1) if BARRIER.match(lines[at]))
        before = (lines[at] for at in range(barrier - 1, -1, -1))
        stored = takewhile(lambda line: not STORE.match(line), before)
        if not in_order(list(stored)[::-1], release_of(target)):
            wrong.append(f"{lines[place]} at {place}: no release")
        barrier = next(at for at in range(place, len(lines)) if BARRIER.match(lines[at]))
        behind = (lines[at] for at in range(barrier, len(lines)))
        unread = list(takewhile(lambda line: not LOAD.match(line), behind))
        if not in_order(unread, acquire_of(target)):
            wrong.append(f"{lines[place]} at {place}: no acquire")
    return wrong


def in_order(lines: list[str], patterns: tuple[str, ...]) -> bool:
    """Whether the patterns match lines one after the other."""
    rest = iter(lines)
    return all(any(re.match(pattern, line) for line in rest) for pattern in patterns)


def test_arrivals_are_fenced(builder: Builder, last_block: TranslationUnit, target: Target) -> None:
    assert not unfenced(instructions(builder, last_block, target), target)


@pytest.mark.parametrize("name", ARRIVING)
def test_arrivals_of_every_kernel_are_fenced(
    builder: Builder, units: dict[str, tuple[TranslationUnit, ...]], target: Target, name: str
) -> None:
    for unit in units[name]:
        assert not unfenced(instructions(builder, unit, target), target), unit.name


def test_a_fence_that_is_left_out_is_found(
    builder: Builder, last_block: TranslationUnit, target: Target
) -> None:
    lines = instructions(builder, last_block, target)
    for patterns, what in ((release_of(target), "release"), (acquire_of(target), "acquire")):
        for pattern in patterns:
            without = [line for line in lines if not re.match(pattern, line)]
            found = unfenced(without, target)
            assert found, f"{pattern} was not missed"
            assert any(line.endswith(f"no {what}") for line in found)
