"""`rocmforge verify` of models that take images: their own towers, with their own weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.cli import main
from rocmforge.commands import agreement
from rocmforge.commands.agreement import TowerAgreement, compare_towers
from rocmforge_hip.backend import create as create_hip
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.ops.model_ops import HipOps
from rocmforge_hip.run.axes import AxisRows
from rocmforge_reference.backend import create as create_reference
from tests.data.models.towers.tiny_gemma4_unified import GEMMA4_UNIFIED
from tests.data.models.towers.tiny_tower import TinyTower
from tests.data.models.towers.tiny_towers import GEMMA3, QWEN3_VL, SMOLVLM
from tests.data.models.towers.tower_files import write_tower_folder
from tests.support.models.options import SMALL
from tests.support.models.towers import load_both

pytestmark = pytest.mark.slow

OPTIONS = replace(SMALL, max_batched_tokens=64)
BACKENDS = (create_hip, create_reference)


def tower_checked(model: TinyTower, folder: Path, stack: ExitStack) -> TowerAgreement:
    path = write_tower_folder(model, folder)
    ours, theirs = (load_both(stack, create(), path, OPTIONS) for create in BACKENDS)
    found, shown = compare_towers(ours.tower, theirs.tower, ours.vision)
    assert len(shown) == found.rows
    return found


def without_bias(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ops, step, x, weight, bias: real(ops, step, x, weight, None)


def without_norm(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ops, x, weight, bias, eps: x


def sharper_scores(real: Callable[..., Any]) -> Callable[..., Any]:
    """Scores of attention are a quarter too large."""

    def launch(self: Any, grid: Any, block: int, **arguments: Any) -> None:
        if self.name.startswith("rf_attention_full"):
            arguments |= {"scale": 1.25 * arguments["scale"]}
        real(self, grid, block, **arguments)

    return launch


def columns_for_rows(real: Callable[..., Any]) -> Callable[..., Any]:
    """Patches are rotated as if the picture had been turned over."""
    return lambda self, step, lane: real(
        self, replace(step, axis_positions=step.axis_positions[:, ::-1]), lane
    )


@pytest.mark.parametrize(
    ("model", "owner", "name", "wrong"),
    [
        (SMOLVLM, HipOps, "linear", without_bias),
        (GEMMA3, Kernel, "launch", sharper_scores),
        (QWEN3_VL, AxisRows, "stage", columns_for_rows),
        (GEMMA4_UNIFIED, HipOps, "norm_projection", without_norm),
    ],
    ids=["no bias", "scores", "axes", "no norm of patches"],
)
def test_a_mistake_in_a_tower_shows(
    model: TinyTower,
    owner: type,
    name: str,
    wrong: Callable[[Callable[..., Any]], Callable[..., Any]],
    stack: ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = tower_checked(model, tmp_path / "right", stack)
    assert right.passed, str(right)
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    found = tower_checked(model, tmp_path / "wrong", stack)
    assert not found.passed, str(found)


def test_a_large_tile_is_checked_in_part(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its first row to its last, each of all its patches."""
    monkeypatch.setattr(agreement, "MOST_PATCHES", 20)
    found = tower_checked(GEMMA3, tmp_path / "m", stack)
    assert (found.rows, found.patches) == (5, 20)
    assert found.passed


@pytest.mark.usefixtures("host")
def test_the_report_has_a_line_for_the_tower_and_one_around_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends with status 1 if the device loses what the tower made for inner layers."""
    path = write_tower_folder(QWEN3_VL, tmp_path / "m")
    monkeypatch.setattr(HipOps, "add_embeddings", lambda ops, step, x, part: x)
    command = ["verify", str(path), "--backend", "hip", "--only", "take_rows", "--tokens", "4"]
    assert main([*command, "--graphs", "off"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (of_tower,) = (line for line in lines if line.startswith("tower "))
    assert "ok     48 rows of 192 patches" in of_tower
    (around,) = (line for line in lines if line.startswith("around a picture "))
    assert "FAILED" in around
