"""The bytes that a step reads, where it reads a part of the weights only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from rocmforge.models.weights import map_places, take
from rocmforge.opening import open_checkpoint
from rocmforge_hip.run.traffic import StepReads
from rocmforge_hip.weights.placement import PlannedVector
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name


def step(tokens: int) -> Any:
    """A step of so many sequences with a token each, without any context."""
    return SimpleNamespace(
        predicts=False,
        num_tokens=tokens,
        num_sequences=tokens,
        logit_rows=np.arange(tokens),
        context_len=np.zeros(tokens, np.int32),
        new_tokens=np.ones(tokens, np.int32),
    )


def test_of_experts_a_step_reads_those_that_its_tokens_choose(tmp_path: Path) -> None:
    with open_checkpoint(write_model(by_name("qwen3moe"), tmp_path)) as checkpoint:
        config, tensors = checkpoint.config, take(checkpoint.config, checkpoint.weights)
        # Each weight as a vector of its rows: 4 bytes for each.
        planned = map_places(
            tensors, lambda _, tensor: PlannedVector((replace(tensor, shape=tensor.shape[:1]),))
        )
        reads = StepReads(config, cast("Any", planned), [0] * config.num_layers)
        rest = sum(
            4 * tensor.shape[0]
            for path, tensor in checkpoint.weights.items()
            if (path != "embedding.token" and "experts" not in path) or "router" in path
        )
    experts = 2 * 3 * 4 * 8  # layers, matrices, bytes, experts
    assert reads.of(step(1)) == rest + 4 + experts * 3 // 8
    assert reads.of(step(2)) == rest + 2 * 4 + round(experts * (1 - (5 / 8) ** 2))


def test_a_step_reads_the_states_of_its_sequences(tmp_path: Path) -> None:
    with open_checkpoint(write_model(by_name("lfm2"), tmp_path)) as checkpoint:
        config, tensors = checkpoint.config, take(checkpoint.config, checkpoint.weights)
        planned = map_places(
            tensors, lambda _, tensor: PlannedVector((replace(tensor, shape=tensor.shape[:1]),))
        )
        reads = StepReads(config, cast("Any", planned), [0] * config.num_layers)
    one_more = reads.of(step(2)) - reads.of(step(1))
    assert one_more == 4 + 2 * 2 * 48 * 4, "a row, and of two layers two inputs of each channel"
