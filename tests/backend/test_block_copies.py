"""Blocks of the reference backend go to the host's memory and come back."""

from __future__ import annotations

import pytest

from tests.backend.conftest import DEFAULTS, Load
from tests.data.models.tiny_models import PROMPT
from tests.support.block_copies import WHATEVER_IT_TAKES, ask_in_turn, check_that_blocks_come_back

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
