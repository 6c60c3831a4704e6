"""Blocks of the HIP backend go to pinned memory and come back, in order with the steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from rocmforge.backend.protocol import StepInput
from rocmforge.errors import EngineError
from rocmforge_hip.device.driver import Driver as HipDriver
from rocmforge_hip.run.block_copies import BlockCopies
from tests.backend.driving import Driver
from tests.data.models.tiny_models import PROMPT, by_name, write_model
from tests.support.block_copies import WHATEVER_IT_TAKES, ask_in_turn, check_that_blocks_come_back
from tests.support.hip import fitting
from tests.support.host_platform import HostPlatform
from tests.support.options import SMALL
from tests.support.runners import load_hip

WIDE = replace(SMALL, max_batched_tokens=64, max_context=128)
TIGHT = replace(WIDE, kv_blocks=5)
PROMPTS = [[(token + shift) % 90 + 3 for token in PROMPT * 2] for shift in (0, 1, 2, 0, 2)]


@pytest.mark.parametrize(
    ("model", "kv_dtype"),
    [("llama", "int8"), ("deepseek-v2", "f16")],
)
def test_blocks_come_back_to_the_bit(
    model: str, kv_dtype: Literal["f16", "int8"], stack: ExitStack, tmp_path: Path
) -> None:
    options = replace(WIDE, kv_dtype=kv_dtype)
    runner = load_hip(stack, write_model(fitting(by_name(model)), tmp_path), options)
    check_that_blocks_come_back(Driver(runner))


def test_prompts_that_were_evicted_are_answered_from_the_host(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(fitting(by_name("llama")), tmp_path)
    monkeypatch.setattr(*WHATEVER_IT_TAKES)
    found, totals = ask_in_turn(load_hip(stack, path, TIGHT), PROMPTS, TIGHT, slots=20)
    expected, _ = ask_in_turn(load_hip(stack, path, TIGHT), PROMPTS, TIGHT)
    assert found == expected
    assert totals.tier_restored_blocks >= 2


def _no_wait(driver: HipDriver, stream: int, event: int) -> None:
    """Nothing waits for anything."""


def _no_wait_of_steps(copies: BlockCopies, step: StepInput) -> None:
    """Steps do not wait for copies."""


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (HipDriver, "wait_for_event", _no_wait),
        (BlockCopies, "before_step", _no_wait_of_steps),
    ],
    ids=["copies_do_not_wait", "steps_do_not_wait"],
)
def test_a_copy_that_is_not_waited_for_is_found(
    owner: type,
    name: str,
    mistake: Callable[..., None],
    host: HostPlatform | None,
    stack: ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if host is None:
        pytest.skip("a real device does not say what was not ordered")
    runner = load_hip(stack, write_model(fitting(by_name("llama")), tmp_path), WIDE)
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(EngineError):
        check_that_blocks_come_back(Driver(runner))
    found = host.take_finding()
    with suppress(EngineError):
        runner.close()
    host.take_finding()
    assert "no event orders the two" in found
