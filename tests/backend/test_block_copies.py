"""Blocks of the reference backend go to the host's memory and come back."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.backend.protocol import Backend
from tests.backend.conftest import DEFAULTS, Load
from tests.backend.driving import Driver
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_gemma4 import sized_gemma4
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.block_copies import (
    WHATEVER_IT_TAKES,
    ask_in_turn,
    check_that_blocks_come_back,
    check_that_states_come_back,
    check_that_windows_come_back,
)
from tests.support.models.predicting import load_predicting, write_predicting

TIGHT = {"kv_blocks": 8, "max_context": 64}
PROMPTS = [[(token + shift) % 90 + 3 for token in PROMPT] for shift in (0, 1, 2, 3, 0, 2)]


@pytest.mark.parametrize("model", ["llama", "gemma3", "gemma4-e", "deepseek-v2"])
def test_blocks_come_back_to_the_bit(model: str, load: Load) -> None:
    check_that_blocks_come_back(load(model))


def test_prompts_that_were_evicted_are_answered_from_the_host(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*WHATEVER_IT_TAKES)
    found, totals = ask_in_turn(load("llama", **TIGHT).runner, PROMPTS, DEFAULTS, slots=20)
    expected, _ = ask_in_turn(load("llama", **TIGHT).runner, PROMPTS, DEFAULTS)
    assert found == expected
    assert totals.prefix_hit_tokens == 2 * 32, "all that is full of the last two"
    assert totals.tier_restored_blocks > 0


def test_blocks_come_back_with_what_a_predictor_keeps(backend: Backend, tmp_path: Path) -> None:
    path = write_predicting(by_name("glm4moe"), tmp_path / "m.gguf")
    with closing(load_predicting(backend, path, DEFAULTS)) as runner:
        check_that_blocks_come_back(Driver(runner), predicts=True)


@pytest.mark.parametrize("model", ["lfm2", "qwen35", "granitehybrid", "nemotron_h"])
def test_states_come_back_to_the_bit(model: str, load: Load) -> None:
    check_that_states_come_back(load(model))


@pytest.mark.parametrize("model", ["lfm2", "qwen35", "granitehybrid", "nemotron_h"])
def test_prompts_whose_states_were_evicted_are_answered_from_the_host(
    model: str, load: Load
) -> None:
    stateful = TIGHT | {"state_snapshots": 2}
    loaded = load(model, **stateful)
    found, totals = ask_in_turn(loaded.runner, PROMPTS, DEFAULTS, slots=20, states=6)
    expected, _ = ask_in_turn(load(model, **stateful).runner, PROMPTS, DEFAULTS)
    assert found == expected
    assert totals.prefix_hit_tokens == 2 * 32, "all that is full of the last two"
    assert totals.tier_restored_states > 0


@pytest.mark.parametrize(
    ("model", "block_size"),
    [
        (by_name("gemma3"), 16),
        (by_name("gpt-oss"), 16),
        # A block is three of a layer without a window and five of others; then two and one.
        (by_name("gemma4-e"), 48),
        (sized_gemma4(by_name("gemma4"), head_dim=16, global_head_dim=16), 32),
    ],
    ids=lambda value: value.name if isinstance(value, TinyModel) else str(value),
)
def test_prompts_whose_windows_were_evicted_are_answered_from_the_host(
    model: TinyModel, block_size: int, load: Load, tmp_path: Path
) -> None:
    parts, num_blocks = block_size // 16, 11
    longer = replace(model, config=model.config | {"max_position_embeddings": 512})
    path = write_model(longer, tmp_path)
    sizes: dict[str, Any] = {"max_context": 160 * parts, "max_batched_tokens": 32}
    releasing = load(path, **sizes, releases_windows=True, kv_blocks=num_blocks).runner
    assert releasing.info.block_size == block_size
    check_that_windows_come_back(
        releasing,
        load(path, **sizes, kv_blocks=64 * parts).runner,
        replace(DEFAULTS, **sizes),
        length=120 * parts,
    )
