"""Layers that release what their window has left behind, on the HIP backend."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from rocmforge.backend.protocol import RunnerInfo, StepInput
from tests.data.models.tiny_models import by_name, write_model
from tests.support.hip import fitting
from tests.support.host_platform import HostPlatform
from tests.support.options import SMALL
from tests.support.runners import load_hip
from tests.support.sliding import slide

OPTIONS = replace(SMALL, max_context=512, max_batched_tokens=64, kv_blocks=24)


def poisoned(step: StepInput, info: RunnerInfo) -> StepInput:
    """The step with places outside the cache where no window reaches."""
    tables = step.window_tables.copy()
    firsts = step.positions[step.query_start[:-1]] - info.window + 1
    for row, first in enumerate(firsts.tolist()):
        tables[:, row, : max(0, first) // info.block_size] = 1 << 20
    return replace(step, window_tables=tables)


@pytest.mark.parametrize(
    ("name", "layers", "graphs"), [("gemma3", 6, "on"), ("gpt-oss", 2, "auto")]
)
def test_answers_are_those_of_a_model_that_keeps_everything(
    name: str,
    layers: int,
    graphs: Literal["on", "auto"],
    tmp_path: Path,
    host: HostPlatform | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several at once, two steps in flight, from graphs, and again from what was released."""
    model = fitting(by_name(name))
    longer = model.config | {"max_position_embeddings": 512, "num_hidden_layers": layers}
    path = write_model(replace(model, config=longer), tmp_path)
    options = replace(OPTIONS, graphs=graphs, decode_variant="fused")
    if graphs == "auto":  # they are checked with each number of sequences
        options = replace(options, max_sequences=2)
    releasing = replace(options, releases_windows=True)
    with ExitStack() as stack:
        runner = load_hip(stack, path, options)
        expected, _ = slide(runner, options, 2, 6, length=142)
        runner = load_hip(stack, path, releasing)
        assert runner.info.window_groups == layers - 1
        assert runner.info.graphs == ("checked" if graphs == "auto" else "unchecked")
        submit = runner.submit
        monkeypatch.setattr(runner, "submit", lambda step: submit(poisoned(step, runner.info)))
        answers, stats = slide(runner, releasing, 2, 6, length=142)
    assert answers == expected
    assert stats.totals.prefix_hit_tokens > 0
