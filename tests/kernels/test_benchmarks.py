"""The programs in benchmarks/kernels launch kernels as they are now: each runs a small case.

What they print is no measurement here.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pytest

import benchmarks.kernels
from benchmarks.kernels import experts, recurrent, timing
from tests.support.launches.kernels import Device
from tests.support.operands.linear import SILU

SMALL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attention": "--heads 2 --kv-heads 1 --head-dim 64 --decode-context 40 --batches 1 "
        "--splits 32 --prefill-tokens 8",
        "encoder": "--tokens 512 --heads 1 --ffn 64 --lengths 32",
        "experts": "--shapes few --tokens 4",
        "linear": "--types q4_k --shapes 64x256 --gemv-rows 1 --gemm-rows 16 --blocks 64",
        "recurrent": "--shapes delta,mamba --steps 1x1,1x20",
    }
)
"""What each is told on the command line."""


@pytest.fixture
def small(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Makes copies small and replays few, and adds small shapes of layers."""
    monkeypatch.setattr(timing, "_COPY_BYTES", 1 << 12)
    monkeypatch.setattr(timing, "_REPLAYS", 2)
    for module in (experts, recurrent):
        monkeypatch.setattr(module, "_CACHE_BYTES", 0)
    few = experts.Shape(64, 64, 4, 2, "q8_0", "q8_0", SILU)
    monkeypatch.setitem(experts.SHAPES, "few", few)
    monkeypatch.setitem(recurrent.SHAPES, "delta", recurrent.Delta(1, 2))
    monkeypatch.setitem(recurrent.SHAPES, "mamba", recurrent.Mamba(2, 1))
    return device


def test_every_program_has_a_small_case() -> None:
    found = {module.name for module in pkgutil.iter_modules(benchmarks.kernels.__path__)}
    assert found - {"timing"} == SMALL.keys()


@pytest.mark.parametrize("name", SMALL)
def test_it_runs(
    small: Device, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if small.host is None:
        pytest.skip("a GPU is for measuring")
    module = importlib.import_module(f"benchmarks.kernels.{name}")
    monkeypatch.setattr(module, "open_gpu", lambda platform: small)
    monkeypatch.setattr(sys, "argv", [name, "--platform", "rocm", *SMALL[name].split()])
    module.main()
    assert " us" in capsys.readouterr().out
