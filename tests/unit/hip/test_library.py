"""Targets and manifests; no device is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmforge_hip.device.library import NoKernelsForTarget, find_target


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    """Kernels for some targets."""
    for name in (
        "gfx1100",
        "gfx11-generic",
        "gfx10-1-generic",
        "gfx942",
        "sm_80",
        "sm_90",
        "sm_90_1",  # nobody's target: a copy for an experiment
        "sm_90_old",
        "host-w32",
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "manifest.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("device", "target"),
    [
        ("gfx1100", "gfx1100"),
        ("gfx1102", "gfx11-generic"),
        ("gfx1153", "gfx11-generic"),
        ("gfx1012", "gfx10-1-generic"),
        ("sm_86", "sm_80"),
        ("sm_90", "sm_90"),
        ("sm_120", "sm_80"),  # the PTX of sm_90 has instructions that later chips lack
        ("host-w32", "host-w32"),
    ],
)
def test_the_exact_target_comes_before_that_of_the_family(
    device: str, target: str, lib: Path
) -> None:
    assert find_target(device, lib) == target


@pytest.mark.parametrize("device", ["gfx908", "gfx950", "gfx1300", "sm_75", "host-w64"])
def test_a_device_without_kernels_is_named_and_so_are_the_kernels(device: str, lib: Path) -> None:
    with pytest.raises(NoKernelsForTarget, match=f"no kernels for {device}.*gfx1100") as caught:
        find_target(device, lib)
    assert caught.value.target == device
    assert "sm_90" in caught.value.available
