"""Models with experts on the HIP backend against the reference backend."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.backend.driving import Driver
from tests.data.models.tiny_experts import EXPERT_MODELS, GPT_OSS
from tests.data.models.tiny_models import by_name, write_model
from tests.e2e.hip.test_hip_models import FLOAT_TOLERANCE, assert_logprobs_agree
from tests.support.hip import fitting
from tests.support.runners import load_hip, load_reference

# Norms of all heads together have no kernel yet.
NAMES = [
    model.name for model in (*EXPERT_MODELS, GPT_OSS) if model.name not in ("olmoe", "minimax-m2")
]


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
