"""Models with experts on the HIP backend against the reference backend."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backend.driving import Driver
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_experts import EXPERT_MODELS, LATENT_MODELS, OTHER_EXPERT_MODELS
from tests.data.models.text.tiny_models import by_name
from tests.e2e.hip.models.test_hip_models import (
    FLOAT_TOLERANCE,
    PROMPTS,
    TIGHT_BLOCKS,
    assert_logprobs_agree,
    assert_same_until_a_near_tie,
    generate,
    generate_and_count,
)
from tests.support.models.hip import fitting
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip, load_reference

NAMES = [model.name for model in (*EXPERT_MODELS, *LATENT_MODELS, *OTHER_EXPERT_MODELS)]


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_gives_the_references_logits(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    path = write_model(fitting(by_name(name)), tmp_path)
    ours, theirs = load_hip(stack, path), load_reference(stack, path)
    assert_logprobs_agree(Driver(ours), Driver(theirs), FLOAT_TOLERANCE)


def test_more_tokens_than_are_grouped_at_a_time_are_grouped_in_parts(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("activations", "experts.groups"):
        monkeypatch.setattr(f"rocmforge_hip.ops.{module}.GROUPED_TOKENS", 5)
    path = write_model(fitting(by_name("qwen2moe")), tmp_path)
    ours, theirs = load_hip(stack, path), load_reference(stack, path)
    assert_logprobs_agree(Driver(ours), Driver(theirs), FLOAT_TOLERANCE)


def test_requests_at_once_with_preemptions_get_the_references_tokens(
    stack: ExitStack, tmp_path: Path
) -> None:
    """In chunks, from shared blocks, and recomputed."""
    path = write_model(fitting(by_name("glm4moe")), tmp_path)
    runner = load_hip(stack, path, replace(SMALL, kv_blocks=TIGHT_BLOCKS))
    got, stats = generate_and_count(runner, PROMPTS)
    assert stats.totals.preemptions > 0
    assert stats.totals.prefix_hit_tokens > 0
    expected = generate(load_reference(stack, path), PROMPTS, num_logprobs=2)
    assert_same_until_a_near_tie(got, expected, 4 * FLOAT_TOLERANCE)


@pytest.mark.parametrize("name", ["qwen2moe", "glm4-moe-lite"])
def test_replays_of_steps_with_experts_are_right(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    path = write_model(fitting(by_name(name)), tmp_path)
    runner = load_hip(stack, path, replace(SMALL, max_sequences=2, graphs="auto"))
    assert runner.info.graphs == "checked"
