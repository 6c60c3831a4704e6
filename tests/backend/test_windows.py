"""Layers that release what their window has left behind: nobody can tell from an answer."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.backend.step import StepInput, StepOutput
from rocmforge_reference.runner import ReferenceRunner
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_gemma4 import sized_gemma4
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import by_name
from tests.support.engine.sliding import slide
from tests.support.models.options import SMALL
from tests.support.models.runners import load_reference

OPTIONS = replace(SMALL, max_sequences=8, kv_blocks=30)
RELEASING = replace(OPTIONS, releases_windows=True, kv_blocks=16)


@pytest.mark.parametrize(
    ("model", "groups", "block_size", "kv_blocks"),
    [
        (by_name("gemma3"), 6, 16, 16),
        (by_name("gpt-oss"), 2, 16, 16),
        (by_name("olmo3"), 4, 16, 16),
        # Two layers with a window and one without, whose heads have 12 and 20 elements: a block is
        # three of the one and five of the others.
        (by_name("gemma4-e"), 3, 48, 13),
        # One key head of 16 elements where there is no window, two elsewhere; then of 12 and 48.
        (sized_gemma4(by_name("gemma4"), head_dim=16, global_head_dim=16), 4, 32, 16),
        (sized_gemma4(by_name("gemma4"), global_head_dim=48), 1, 16, 16),
    ],
    ids=lambda value: value.name if isinstance(value, TinyModel) else str(value),
)
def test_answers_are_those_of_a_model_that_keeps_everything(
    model: TinyModel, groups: int, block_size: int, kv_blocks: int, tmp_path: Path
) -> None:
    longer = model.config | {"max_position_embeddings": 512}
    path, parts = write_model(replace(model, config=longer), tmp_path), block_size // 16
    # Where blocks are longer, so are prompts and answers, and as many are released.
    length, tokens, context = 50 * parts, 20 * parts, 128 * parts
    keeping = replace(OPTIONS, kv_blocks=30 * parts, max_context=context)
    releasing = replace(RELEASING, kv_blocks=kv_blocks, max_context=context)
    with ExitStack() as stack:
        runner = load_reference(stack, path, keeping)
        assert runner.info.window_groups == 0
        expected, _ = slide(runner, keeping, max_tokens=tokens, length=length)
        runner = load_reference(stack, path, releasing)
        assert (runner.info.window_groups, runner.info.block_size) == (groups, block_size)
        answers, stats = slide(runner, releasing, max_tokens=tokens, length=length)
    assert answers == expected
    assert stats.totals.preemptions > 0
    assert stats.totals.prefix_hit_tokens > 0


def test_drafts_that_are_taken_back_change_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft model is the model itself, but for the tokens of every fourth step."""
    path = write_model(by_name("gemma3"), tmp_path)
    options = replace(RELEASING, draft_tokens=4, max_batched_tokens=40)
    keeping = replace(OPTIONS, draft_tokens=4, max_batched_tokens=40, kv_blocks=60)
    with ExitStack() as stack:
        expected, _ = slide(
            load_reference(stack, path, OPTIONS), OPTIONS, max_tokens=40, temperature=0
        )
        runner = load_reference(stack, path, options)
        assert runner.info.window_groups == 6
        draft = load_reference(stack, path, keeping)
        collect = draft.collect

        def collect_other() -> StepOutput:
            output = collect()
            is_wrong = output.step_id % 4 == 3
            return replace(output, token_ids=(output.token_ids + is_wrong) % 97)

        monkeypatch.setattr(draft, "collect", collect_other)
        answers, stats = slide(runner, options, max_tokens=40, draft=draft, temperature=0)
    assert answers == expected
    drafted, accepted = stats.totals.model_drafted_tokens, stats.totals.model_accepted_tokens
    assert 20 < accepted < drafted - 20


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("gemma4", {}, "differ in size in no simple ratio"),
        ("gemma3", {"releases_windows": False}, "what drafts"),
        ("gemma3", {}, ""),
        ("llama", {}, ""),
        ("gemma3", {"kv_blocks": 4}, ""),
    ],
)
def test_a_note_says_why_windows_keep_what_they_have_left_behind(
    name: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    options = replace(RELEASING, **changes)
    with ExitStack() as stack:
        runner = load_reference(stack, write_model(by_name(name), tmp_path), options)
    told = [note for note in runner.info.notes if note.startswith("windows keep all blocks: ")]
    assert [why in note for note in told] == ([True] if why else [])


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
