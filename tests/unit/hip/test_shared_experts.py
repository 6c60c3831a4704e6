"""Shared experts that are planned as one of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmforge.gguf.checkpoint import read_checkpoint
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.weights import present, take
from rocmforge_hip.run.traffic import StepReads
from rocmforge_hip.weights.placement import (
    PlannedPart,
    PlannedVector,
    plan_weights,
    weight_bytes,
)
from rocmforge_hip.weights.seats import with_seats
from rocmforge_hip.weights.shared import join_shared, num_logits, num_shared
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.data.models.text.tiny_recurrent import larger_delta
from tests.support.models.hip import fitting


@pytest.mark.parametrize("name", ["qwen35moe", "qwen3next"])
def test_experts_of_one_shape_are_joined(name: str, tmp_path: Path) -> None:
    path = write_model(larger_delta(by_name(name)), tmp_path)
    checkpoint = read_checkpoint(open_gguf(path))
    plan = plan_weights(take(checkpoint.config, checkpoint.weights))
    joined = join_shared(plan)
    for layer in plan.layers:  # one vector has both routers
        experts = present(layer.experts)
        assert experts.router is present(experts.shared).router
        assert num_logits(experts) == 9
    if name == "qwen3next":  # its shared expert is wider
        assert joined is plan
        return
    assert weight_bytes(joined) == weight_bytes(plan)
    assert (num_shared(plan), num_shared(joined)) == (0, 1)
    for layer in joined.layers:
        experts = present(layer.experts)
        assert experts.shared is None
        router, gate = experts.router, experts.gate
        assert isinstance(router, PlannedVector)
        assert router.storage.shape == (9 * 128,)
        assert isinstance(gate, PlannedPart)
        assert gate is experts.up
        assert gate.matrix.num_experts == 9
        assert [(row, "shexp" in tensor.name) for tensor, row, _ in gate.matrix.parts] == [
            *((0, True), (0, True)),
            *((64, False), (64, False)),
        ]
    hosted = with_seats(plan, lambda matrix: 2)
    assert join_shared(hosted) is hosted


@pytest.mark.parametrize("name", ["glm4moe", "deepseek-v3", "deepseek-v2"])
def test_a_shared_expert_without_a_router_is_joined(name: str, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(open_gguf(write_model(fitting(by_name(name)), tmp_path)))
    plan = plan_weights(take(checkpoint.config, checkpoint.weights))
    joined = join_shared(plan)
    if name == "deepseek-v2":  # has two, which its file has as a wider one
        assert joined is plan
        return
    assert weight_bytes(joined) == weight_bytes(plan)
    assert num_shared(joined) == 1
    for layer, before in zip(joined.layers, plan.layers, strict=True):
        if layer.experts is not None:
            assert layer.experts.shared is None
            assert layer.experts.router is present(before.experts).router


def test_a_step_reads_all_of_a_shared_expert(tmp_path: Path) -> None:
    """Joined or not; of the others, those that are chosen."""
    checkpoint = read_checkpoint(open_gguf(write_model(fitting(by_name("glm4moe")), tmp_path)))
    config = checkpoint.config
    plan = plan_weights(take(config, checkpoint.weights))
    reads = [
        StepReads(config, each, [0] * config.num_layers).of_decode(3, 1)
        for each in (plan, join_shared(plan))
    ]
    assert reads[0] == reads[1]
