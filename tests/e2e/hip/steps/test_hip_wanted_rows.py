"""Of the last layer's network, a step with prompts computes the rows alone that somebody reads."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.backend.step import StepOutput
from rocmforge.models.weights import present
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.attention.cached import CachedAttention
from rocmforge_hip.ops.geometry import AttentionSplit, Geometry
from rocmforge_hip.ops.model_ops import HipOps
from rocmforge_hip.ops.step.device_step import DeviceStep
from tests.backend.driving import Chunk, Driver, Want, make_step
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.models.hip import fitting
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip
from tests.support.models.state_models import with_layers, write_states

OPTIONS = replace(SMALL, max_sequences=4, kv_blocks=24, graphs="off", decode_variant="plain")
CUT = 17
SCORED = tuple(Want(token=row, target=PROMPT[row], num_logprobs=0) for row in (9, 2, 9))
DRAWN = (Want(num_logprobs=0),)
PART = Chunk(tokens=PROMPT[:CUT], blocks=range(3), wants=DRAWN)
LINEAR, FULL = "linear_attention", "full_attention"


def load(stack: ExitStack, folder: Path, name: str, *kinds: str) -> Driver:
    model = by_name(name)
    if kinds:
        path = write_states(with_layers(model, kinds), folder, "q8_0", of_experts=True)
    else:
        path = write_model(fitting(model), folder)
    return Driver(load_hip(stack, path, OPTIONS))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many go through the last network of each step."""
    found: list[int] = []
    take = HipOps.take_wanted

    def counted(
        self: HipOps, step: DeviceStep, residual: Activation, delta: Activation
    ) -> tuple[Activation, Activation]:
        taken = take(self, step, residual, delta)
        assert taken[0].rows == taken[1].rows
        found.append(taken[0].rows)
        return taken

    monkeypatch.setattr(HipOps, "take_wanted", counted)
    return found


@pytest.fixture
def ends_alone(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each attention of a step is for the last tokens of its sequences alone."""
    found: list[bool] = []
    attend = CachedAttention.attend

    def seen(self: CachedAttention, *given: Any, ends_alone: bool) -> Activation:
        found.append(ends_alone)
        return attend(self, *given, ends_alone=ends_alone)

    monkeypatch.setattr(CachedAttention, "attend", seen)
    return found


def steps(driver: Driver) -> list[StepOutput]:
    """A prompt in two parts, of which nobody reads the first, and a decode beside the second.

    At last, a decode beside parts of three prompts, all of which are drawn behind.
    """
    first, second, third, fourth = (range(start, start + 3) for start in (0, 4, 8, 12))
    return [
        driver.run(Chunk(tokens=PROMPT[:CUT], blocks=first, wants=())),
        driver.run(Chunk(tokens=PROMPT[:5], blocks=second, wants=DRAWN, state_slot=1)),
        driver.run(
            Chunk(tokens=[7], start=5, blocks=second, wants=DRAWN, state_slot=1),
            Chunk(tokens=PROMPT[CUT:], start=CUT, blocks=first, wants=(*SCORED, *DRAWN)),
        ),
        driver.run(Chunk(tokens=[8], start=len(PROMPT), blocks=first, wants=DRAWN)),
        driver.run(
            Chunk(tokens=PROMPT[:7], blocks=third, wants=DRAWN, state_slot=2),
            Chunk(tokens=[9, 10], start=len(PROMPT) + 1, blocks=first, wants=DRAWN),
            Chunk(tokens=[11], start=6, blocks=second, wants=DRAWN, state_slot=1),
            Chunk(tokens=PROMPT[:9], blocks=fourth, wants=DRAWN, state_slot=3),
        ),
    ]


def split_by_blocks(_: Geometry, context: int, *given: int | None) -> AttentionSplit:
    return AttentionSplit(BLOCK_TOKENS, context // BLOCK_TOKENS)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        *((name, ()) for name in ("llama", "gemma3", "olmo2", "gemma4", "qwen3moe", "dots1")),
        *((name, ()) for name in ("gemma4-moe", "deepseek-v2", "deepseek-v3")),
        ("qwen35", (LINEAR, LINEAR, LINEAR, FULL)),
        ("qwen35moe", (LINEAR, FULL)),
        ("qwen35moe", (LINEAR, FULL, LINEAR)),
        ("granitehybrid", (FULL, LINEAR)),
        ("lfm2", (FULL, "conv")),
        ("nemotron_h", (LINEAR, FULL)),
        ("nemotron_h", (FULL, LINEAR, "mlp")),
    ],
)
def test_answers_are_those_of_a_step_that_computes_all_rows(
    stack: ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[int],
    name: str,
    kinds: tuple[str, ...],
) -> None:
    monkeypatch.setattr(Geometry, "attention", split_by_blocks)
    found = steps(load(stack, tmp_path, name, *kinds))
    assert rows == [1, 2 + len(SCORED), 1, 4]
    monkeypatch.setattr(HipOps, "leaves_rows_out", lambda self, step: False)
    rows.clear()
    expected = steps(load(stack, tmp_path, name, *kinds))
    assert rows == [CUT, 5, 1 + len(PROMPT) - CUT, 1, 19]
    assert present(found[0].cost).launches < present(expected[0].cost).launches
    for got, whole in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(got.token_ids, whole.token_ids)
        # Fewer rows may be multiplied by other kernels, in float32.
        np.testing.assert_allclose(present(got.logprobs), present(whole.logprobs), atol=2e-3)


@pytest.mark.parametrize(
    ("name", "kinds", "wants", "alone"),
    [
        ("llama", (), DRAWN, [False, True]),
        ("llama", (), (*SCORED, *DRAWN), [False, False]),
        ("granitehybrid", (FULL, LINEAR, FULL), DRAWN, [False, True]),
        # Nothing has been attended to before, so other rows would be anything.
        ("qwen35moe", (LINEAR, FULL), DRAWN, [False]),
        ("granitehybrid", (FULL, LINEAR), DRAWN, [False]),
    ],
)
def test_the_last_layer_attends_for_last_tokens_alone(
    stack: ExitStack,
    tmp_path: Path,
    ends_alone: list[bool],
    name: str,
    kinds: tuple[str, ...],
    wants: tuple[Want, ...],
    alone: list[bool],
) -> None:
    load(stack, tmp_path, name, *kinds).run(replace(PART, wants=wants))
    assert ends_alone == alone


def test_another_embedding_is_of_all_tokens(
    stack: ExitStack, tmp_path: Path, rows: list[int]
) -> None:
    load(stack, tmp_path, "gemma4-e").run(PART)
    assert rows == [CUT]


def test_sums_of_hidden_states_are_of_all_tokens(
    stack: ExitStack, tmp_path: Path, rows: list[int], ends_alone: list[bool]
) -> None:
    runner = load(stack, tmp_path, "llama").runner
    step = make_step(0, [PART], runner.info.block_size)
    runner.submit(replace(step, hidden_ranges=np.array([[0, CUT]], np.int32)))
    runner.collect()
    assert rows == [CUT]
    assert not any(ends_alone)
