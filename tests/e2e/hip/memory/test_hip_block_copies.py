"""Blocks of the HIP backend go to pinned memory and come back, in order with the steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from rocmforge.backend import registry
from rocmforge.backend.step import StepInput
from rocmforge.errors import EngineError
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.device.driver import Driver as HipDriver
from rocmforge_hip.run.block_copies import BlockCopies
from tests.backend.driving import Driver
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_gemma4 import sized_gemma4
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.block_copies import (
    WHATEVER_IT_TAKES,
    ask_in_turn,
    check_that_blocks_come_back,
    check_that_blocks_of_windows_come_back,
    check_that_states_come_back,
    check_that_windows_come_back,
)
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import fitting
from tests.support.models.options import SMALL
from tests.support.models.predicting import load_predicting, write_predicting
from tests.support.models.runners import load_hip
from tests.support.models.state_models import larger

WIDE = replace(SMALL, max_batched_tokens=64, max_context=128)
TIGHT = replace(WIDE, kv_blocks=5)
RELEASING = replace(
    SMALL,
    max_context=512,
    max_batched_tokens=64,
    kv_blocks=24,
    releases_windows=True,
)
LLAMA, LFM2 = fitting(by_name("llama")), larger(by_name("lfm2"))
PROMPTS = [[(token + shift) % 90 + 3 for token in PROMPT * 2] for shift in (0, 1, 2, 0, 2)]


@pytest.mark.parametrize(
    ("model", "kv_dtype"),
    [("llama", "int8"), ("llama", "k8v4"), ("gemma4-e", "f16"), ("deepseek-v2", "f16")],
)
def test_blocks_come_back_to_the_bit(
    model: str, kv_dtype: Literal["f16", "int8", "k8v4"], stack: ExitStack, tmp_path: Path
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


@pytest.mark.parametrize("name", ["lfm2", "qwen35", "nemotron_h"])
def test_states_come_back_to_the_bit(name: str, stack: ExitStack, tmp_path: Path) -> None:
    path = write_model(larger(by_name(name)), tmp_path)
    check_that_states_come_back(Driver(load_hip(stack, path, WIDE)))


def test_blocks_come_back_with_what_a_predictor_keeps(stack: ExitStack, tmp_path: Path) -> None:
    path = write_predicting(fitting(by_name("glm4moe")), tmp_path / "m.gguf")
    runner = load_predicting(registry.create("hip"), path, WIDE)
    check_that_blocks_come_back(Driver(stack.enter_context(closing(runner))), predicts=True)


def longer(model: TinyModel, **changes: int) -> TinyModel:
    """The model with a context in which its windows release blocks."""
    return replace(model, config=model.config | {"max_position_embeddings": 512, **changes})


GPT_OSS = longer(fitting(by_name("gpt-oss")), num_hidden_layers=2)
"""One of its layers has a window."""


def test_prompts_whose_windows_were_evicted_are_answered_from_the_host(
    stack: ExitStack, tmp_path: Path
) -> None:
    path = write_model(GPT_OSS, tmp_path)
    keeping = replace(RELEASING, releases_windows=False, kv_blocks=64)
    check_that_windows_come_back(
        load_hip(stack, path, RELEASING), load_hip(stack, path, keeping), keeping, length=200
    )


@pytest.mark.parametrize(
    ("model", "kv_dtype", "block_size"),
    [
        (GPT_OSS, "int8", BLOCK_TOKENS),
        (longer(fitting(by_name("gemma3"))), "f16", BLOCK_TOKENS),
        # A block of a layer without a window is of two with one, and the other way round.
        (longer(fitting(by_name("gemma4-e"))), "int8", BLOCK_TOKENS),
        (
            longer(sized_gemma4(fitting(by_name("gemma4")), global_head_dim=64)),
            "int8",
            2 * BLOCK_TOKENS,
        ),
    ],
    ids=["one size", "a group with fewer layers", "two of windows", "two without"],
)
def test_blocks_of_windows_come_back_to_the_bit(
    model: TinyModel,
    kv_dtype: Literal["f16", "int8"],
    block_size: int,
    stack: ExitStack,
    tmp_path: Path,
) -> None:
    options = replace(RELEASING, kv_dtype=kv_dtype)
    runner = load_hip(stack, write_model(model, tmp_path), options)
    assert runner.info.block_size == block_size
    check_that_blocks_of_windows_come_back(Driver(runner))


def test_a_step_that_does_not_wait_for_blocks_of_windows_is_found(
    host: HostPlatform | None, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host is None:
        pytest.skip("a real device does not say what was not ordered")
    real = BlockCopies.before_step

    def before_step(copies: BlockCopies, step: StepInput) -> None:
        tables, slots = np.zeros(0, np.int32), np.zeros(0, np.int64)
        real(copies, replace(step, window_tables=tables, window_slots=slots))

    runner = load_hip(stack, write_model(GPT_OSS, tmp_path), RELEASING)
    monkeypatch.setattr(BlockCopies, "before_step", before_step)
    with pytest.raises(EngineError):
        check_that_blocks_of_windows_come_back(Driver(runner))
    found = host.take_finding()
    with suppress(EngineError):
        runner.close()
    host.take_finding()
    assert "no event orders the two" in found


def _no_wait(driver: HipDriver, stream: int, event: int) -> None:
    """Nothing waits for anything."""


def _no_wait_of_steps(copies: BlockCopies, step: StepInput) -> None:
    """Steps do not wait for copies."""


@pytest.mark.parametrize(
    ("model", "check", "owner", "name", "mistake"),
    [
        (LLAMA, check_that_blocks_come_back, HipDriver, "wait_for_event", _no_wait),
        (LLAMA, check_that_blocks_come_back, BlockCopies, "before_step", _no_wait_of_steps),
        (LFM2, check_that_states_come_back, BlockCopies, "before_step", _no_wait_of_steps),
    ],
    ids=["copies_do_not_wait", "steps_do_not_wait", "steps_do_not_wait_for_states"],
)
def test_a_copy_that_is_not_waited_for_is_found(
    model: TinyModel,
    check: Callable[[Driver], None],
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
    runner = load_hip(stack, write_model(model, tmp_path), WIDE)
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(EngineError):
        check(Driver(runner))
    found = host.take_finding()
    with suppress(EngineError):
        runner.close()
    host.take_finding()
    assert "no event orders the two" in found
