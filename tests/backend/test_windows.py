"""Layers that release what their window has left behind: nobody can tell from an answer."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.backend.protocol import StepInput
from rocmforge_reference.runner import ReferenceRunner
from tests.data.models.tiny_models import by_name, write_model
from tests.support.options import SMALL
from tests.support.runners import load_reference
from tests.support.sliding import slide

OPTIONS = replace(SMALL, max_sequences=8, kv_blocks=30)
RELEASING = replace(OPTIONS, releases_windows=True, kv_blocks=16)


@pytest.mark.parametrize(("name", "groups"), [("gemma3", 6), ("gpt-oss", 2), ("olmo3", 4)])
def test_answers_are_those_of_a_model_that_keeps_everything(
    name: str, groups: int, tmp_path: Path
) -> None:
    path = write_model(by_name(name), tmp_path)
    with ExitStack() as stack:
        runner = load_reference(stack, path, OPTIONS)
        assert runner.info.window_groups == 0
        expected, _ = slide(runner, OPTIONS)
        runner = load_reference(stack, path, RELEASING)
        assert runner.info.window_groups == groups
        answers, stats = slide(runner, RELEASING)
    assert answers == expected
    assert stats.totals.preemptions > 0
    assert stats.totals.prefix_hit_tokens > 0


def late(step: StepInput) -> StepInput:
    """The step with entries of a window's table that are one block old."""
    tables = step.window_tables.copy()
    tables[:, :, 1:] = step.window_tables[:, :, :-1]
    return replace(step, window_tables=tables)


def test_answers_depend_on_the_tables_of_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(by_name("gpt-oss"), tmp_path)
    submit = ReferenceRunner.submit
    with ExitStack() as stack:
        runner = load_reference(stack, path, RELEASING)
        expected, _ = slide(runner, RELEASING)
        monkeypatch.setattr(ReferenceRunner, "submit", lambda own, step: submit(own, late(step)))
        assert slide(runner, RELEASING)[0] != expected
