"""Layers that release what their window has left behind, on the HIP backend."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.backend.step import StepInput
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_gemma4 import sized_gemma4
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import by_name
from tests.support.engine.sliding import slide
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import fitting
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip

OPTIONS = replace(SMALL, max_context=512, max_batched_tokens=64, kv_blocks=24)


def poisoned(step: StepInput, info: RunnerInfo) -> StepInput:
    """The step with places outside the cache where no window reaches."""
    tables = step.window_tables.copy()
    firsts = step.positions[step.query_start[:-1]] - info.window + 1
    for row, first in enumerate(firsts.tolist()):
        tables[:, row, : max(0, first) // info.block_size] = 1 << 20
    return replace(step, window_tables=tables)


@pytest.mark.parametrize(
    ("model", "kv_dtype", "groups", "block_size", "block_bytes"),
    [
        # A block of a layer without a window is of two with one, whose keys have half the size.
        (fitting(by_name("gemma4-e")), "int8", 1, 32, 8448 + 512),
        # And the other way round: two blocks of a layer without a window are of one with one.
        (sized_gemma4(fitting(by_name("gemma4")), global_head_dim=64), "f16", 4, 64, 32768),
        (sized_gemma4(fitting(by_name("gemma4")), global_head_dim=64), "int8", 4, 64, 17408 + 1024),
    ],
    ids=lambda value: value.name if isinstance(value, TinyModel) else str(value),
)
def test_layers_whose_keys_differ_in_size_share_memory(
    model: TinyModel,
    kv_dtype: Literal["f16", "int8"],
    groups: int,
    block_size: int,
    block_bytes: int,
    tmp_path: Path,
    host: HostPlatform | None,
) -> None:
    longer = model.config | {"max_position_embeddings": 512}
    path = write_model(replace(model, config=longer), tmp_path)
    options = replace(OPTIONS, kv_dtype=kv_dtype, decode_variant="fused", max_sequences=2)
    if kv_dtype == "f16":
        options = replace(options, graphs="auto")
    releasing = replace(options, releases_windows=True, kv_blocks=16)
    with ExitStack() as stack:
        expected, _ = slide(load_hip(stack, path, options), options, 2, 6, length=192)
        runner = load_hip(stack, path, releasing)
        info = runner.info
        assert (info.window_groups, info.block_size) == (groups, block_size)
        assert info.block_bytes == block_bytes, "of layers without a window, and scales of others"
        answers, stats = slide(runner, releasing, 2, 6, length=192)
    assert answers == expected
    assert stats.totals.prefix_hit_tokens > 0


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
