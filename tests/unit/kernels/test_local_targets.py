"""An installation for development compiles for the GPUs of its machine only."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.local import local_targets


def write_nodes(folder: Path, *versions: int) -> Path:
    """A tree as the amdgpu driver shows it below /sys; version 0 is a CPU."""
    for number, version in enumerate(versions):
        node = folder / str(number)
        node.mkdir()
        text = f"cpu_cores_count 0\nsimd_count 96\ngfx_target_version {version}\n"
        (node / "properties").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("version", "name"),
    [(90010, "gfx90a"), (90402, "gfx942"), (110000, "gfx1100"), (110501, "gfx1151")],
)
def test_a_known_chip_gets_its_own_target_alone(tmp_path: Path, version: int, name: str) -> None:
    targets = local_targets(write_nodes(tmp_path, 0, version))
    assert [target.name for target in targets] == [name]


def test_an_unknown_chip_gets_the_generic_targets(tmp_path: Path) -> None:
    targets = local_targets(write_nodes(tmp_path, 0, 110502))
    assert targets
    assert all(target.is_generic for target in targets)


def test_two_cards_get_both_targets(tmp_path: Path) -> None:
    targets = local_targets(write_nodes(tmp_path, 0, 120001, 100300))
    assert {target.name for target in targets} == {"gfx1030", "gfx1201"}


def test_a_machine_without_a_gpu_builds_nothing(tmp_path: Path) -> None:
    assert local_targets(write_nodes(tmp_path, 0)) == ()


def test_a_machine_without_the_driver_builds_nothing(tmp_path: Path) -> None:
    assert local_targets(tmp_path / "missing") == ()
