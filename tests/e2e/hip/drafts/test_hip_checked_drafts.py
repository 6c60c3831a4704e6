"""Rows of steps that check draft tokens: what they say is what decodes say.

In a batch of as many rows they say the same bit for bit. Fewer rows are multiplied by other
kernels, which round otherwise: between those, differences are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.backend.step import StepOutput
from rocmforge.models.weights import present
from tests.backend.driving import Chunk, Driver
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.data.models.text.tiny_recurrent import larger_delta
from tests.support.engine.forced import Forcing
from tests.support.models.hip import quantized, write_quantized
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip

PROMPTS = [PROMPT[:2], PROMPT[20:23], PROMPT[9:12]]
ACCEPTED, REJECTED = 3, 1
"""Tokens that a step takes of a sequence: one is known, the others are drafted."""
TOKENS = np.random.default_rng(3).integers(0, 97, (len(PROMPTS), 2 * ACCEPTED), np.int32)
ROUNDING = 0.02
"""Nats by which rows may differ between kernels; what is wrong differs by more."""
OPTIONS = replace(
    SMALL,
    max_context=64,
    max_batched_tokens=64,
    max_sequences=(ACCEPTED + REJECTED) * len(PROMPTS),
    kv_blocks=2 * ACCEPTED * len(PROMPTS),
    draft_tokens=4,
    activation_bits="8",
    decode_variant="fewest",
)


@pytest.fixture(scope="module", params=["llama", "qwen35"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts")
    if request.param == "llama":
        return write_quantized(quantized(by_name("llama"), "q4_k"), "q4_k", folder)
    return write_model(larger_delta(by_name("qwen35")), folder)


def forcing(driver: Driver, number: int = 0) -> Forcing:
    return Forcing(driver, PROMPTS, TOKENS, first=number * len(PROMPTS), room=32)


class Mistaken(Driver):
    """Makes a mistake in each step that checks drafts."""

    def __init__(self, driver: Driver, mistake: Callable[[Chunk], Chunk]) -> None:
        super().__init__(driver.runner)
        self._mistake = mistake

    def run(self, *chunks: Chunk) -> StepOutput:
        is_prompt = any(chunk.start == 0 for chunk in chunks)
        return super().run(*(chunk if is_prompt else self._mistake(chunk) for chunk in chunks))


MISTAKES: dict[str, Callable[[Chunk], Chunk]] = {
    "position": lambda chunk: replace(chunk, start=chunk.start + 1),
    "token": lambda chunk: replace(chunk, tokens=[*chunk.tokens[1:], chunk.tokens[0]]),
    "state": lambda chunk: replace(chunk, state_read=_one_later(present(chunk.state_read))),
}
"""Of one token: where it is, which it is, and after which the states are."""


def _one_later(slot: int) -> int:
    return slot + (slot >= len(PROMPTS))  # the others have states after one token alone


def test_rows_are_those_of_as_many_streams_bit_for_bit(model: Path, stack: ExitStack) -> None:
    """In the variant with the fewest launches, which stores a key and attends to it in one."""
    driver = Driver(load_hip(stack, model, OPTIONS))
    checked = forcing(driver).checked(ACCEPTED)
    streams = [forcing(driver, number) for number in range(ACCEPTED)]
    decoded = streams[0].decoded(*streams[1:])
    np.testing.assert_array_equal(checked.ids, decoded.ids)
    np.testing.assert_array_equal(checked.logprobs, decoded.logprobs)


def test_rows_differ_from_those_of_fewer_streams_by_rounding_alone(
    model: Path, stack: ExitStack
) -> None:
    driver = Driver(load_hip(stack, model, OPTIONS))
    decoded = forcing(driver).decoded()
    checked = forcing(driver).checked_with_rejected(ACCEPTED, REJECTED)
    assert 0 < np.abs(decoded.differences(checked)).max() < ROUNDING
    for name, mistake in MISTAKES.items():
        if name != "state" or driver.runner.info.state_slots:
            wrong = forcing(Mistaken(driver, mistake)).checked_with_rejected(ACCEPTED, REJECTED)
            assert np.abs(decoded.differences(wrong)).max() > 2 * ROUNDING, name
