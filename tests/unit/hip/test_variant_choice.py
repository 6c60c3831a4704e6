"""The choice among variants of decode steps, and the file that keeps it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge_hip.ops.step.shape import StepShape
from rocmforge_hip.ops.step.variants import PLAIN, VARIANTS
from rocmforge_hip.run.variant_choice import ChoiceFile, StepVariants, VariantChoice

SHAPE = StepShape(tokens=1, sequences=1, rows=1, blocks=8, decodes=1, prefills=0, longest_prefill=0)
MIXED = StepVariants(
    (
        VariantChoice(1, 8, "fused"),
        VariantChoice(1, 128, "plain"),
        VariantChoice(16, 8, "plain"),
        VariantChoice(16, 128, "fused"),
    )
)


@pytest.mark.parametrize(
    ("sequences", "blocks", "expected"),
    [
        (1, 8, "fused"),
        (2, 16, "fused"),
        (1, 64, "plain"),
        (1, 1024, "plain"),
        (8, 8, "plain"),
        (128, 256, "fused"),
    ],
)
def test_a_step_takes_the_variant_of_the_nearest_size(
    sequences: int, blocks: int, expected: str
) -> None:
    shape = replace(SHAPE, sequences=sequences, blocks=blocks)
    assert MIXED.of(shape) == VARIANTS[expected]
    assert StepVariants.always("plain").of(shape) == PLAIN


def test_what_is_kept_is_read_again_for_the_same_facts_only(tmp_path: Path) -> None:
    kept = ChoiceFile(tmp_path / "steps", ("a device", 3))
    assert kept.read() is None
    kept.write(MIXED)
    assert kept.read() == MIXED
    assert ChoiceFile(tmp_path / "steps", ("a device", 4)).read() is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nothing of ours",
        "3",
        "[]",
        '[[1, 8, "unknown"]]',
        '[[0, 8, "plain"]]',
        "[[1, 8]]",
        '[[1.5, 8, "plain"]]',
    ],
)
def test_a_bad_file_is_ignored_with_a_word(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = ChoiceFile(tmp_path, ())
    kept.path.write_text(content)
    assert kept.read() is None
    assert f"{kept.path} is ignored" in caplog.text
    kept.write(MIXED)
    assert kept.read() == MIXED


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    ChoiceFile(tmp_path / "file", ()).write(MIXED)
    assert "is not kept" in caplog.text


def test_a_file_is_small_and_for_people(tmp_path: Path) -> None:
    kept = ChoiceFile(tmp_path, ())
    kept.write(MIXED)
    assert json.loads(kept.path.read_text())[0] == [1, 8, "fused"]
