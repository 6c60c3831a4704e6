"""Prompts of all sizes are computed at load, so that no request is the first to launch a kernel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.backend.step import StepInput
from rocmforge_hip.load import loading
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.trials import first_prompts
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import by_name
from tests.data.models.text.tiny_recurrent import larger_delta
from tests.support.models.hip import fitting
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip

OPTIONS = replace(
    SMALL, max_batched_tokens=72, max_sequences=2, graphs="off", decode_variant="plain"
)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[StepInput]:
    """The steps of loads, on a device whose speed is said to mean something."""
    steps: list[StepInput] = []
    real = HipRunner.submit

    def submit(self: HipRunner, step: StepInput) -> None:
        steps.append(step)
        real(self, step)

    monkeypatch.setattr(HipRunner, "submit", submit)
    monkeypatch.setattr(loading, "is_measured", lambda target: True)
    monkeypatch.setattr(first_prompts, "MOST_SECONDS", 1000.0)
    return steps


def drawn(steps: list[StepInput]) -> list[int]:
    """Tokens of the steps that draw one."""
    return [step.num_tokens for step in steps if len(step.logit_rows) == 1]


@pytest.mark.parametrize(
    ("name", "sized"),
    [
        ("llama", fitting),
        ("gemma3", fitting),
        ("hunyuan-moe", fitting),
        ("qwen35", larger_delta),
    ],
)
def test_a_load_computes_prompts_of_all_sizes_up_to_the_largest_step(
    stack: ExitStack,
    tmp_path: Path,
    tried: list[StepInput],
    name: str,
    sized: Callable[[TinyModel], TinyModel],
) -> None:
    load_hip(stack, write_model(sized(by_name(name)), tmp_path), OPTIONS)
    assert drawn(tried) == [16, 32, 64, 72]


def test_no_prompt_is_longer_than_the_cache(
    stack: ExitStack, tmp_path: Path, tried: list[StepInput]
) -> None:
    path = write_model(fitting(by_name("llama")), tmp_path)
    load_hip(stack, path, replace(OPTIONS, kv_blocks=2))
    assert drawn(tried) == [16, 32, 64]


def test_it_ends_in_time(
    stack: ExitStack, tmp_path: Path, tried: list[StepInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_prompts, "MOST_SECONDS", 0.0)
    load_hip(stack, write_model(fitting(by_name("llama")), tmp_path), OPTIONS)
    assert drawn(tried) == [16]
