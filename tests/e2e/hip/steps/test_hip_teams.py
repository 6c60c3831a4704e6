"""Sequences that share the front of their contexts, which a step then reads once for all."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from rocmforge.backend.step import StepOutput
from rocmforge.models.weights import present
from rocmforge_hip.run import teams
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.models.hip import fitting
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip

BLOCK = 32
OPTIONS = replace(
    SMALL, max_context=256, max_batched_tokens=128, max_sequences=6, kv_blocks=24, graphs="on"
)
FRONT = [5, 2]
"""The blocks that hold what all sequences begin with."""
WANTS = (Want(target=7, num_logprobs=0),)
TOKENS = (PROMPT * 8)[: 4 * BLOCK]


class Sequences:
    """Sequences behind one front, of which each step computes the next tokens of some."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lengths: dict[int, int] = {}
        driver.run(Chunk(tokens=TOKENS[: 2 * BLOCK], blocks=FRONT))

    def blocks(self, number: int) -> list[int]:
        return [*FRONT, 6 + 2 * number, 7 + 2 * number]

    def compute(self, number: int, end: int) -> None:
        """Computes what a sequence has behind the front, in blocks of its own."""
        own = self.blocks(number)
        tokens = [token + number for token in TOKENS[2 * BLOCK : end]]
        self._driver.run(Chunk(tokens=tokens, start=2 * BLOCK, blocks=own))
        self._lengths[number] = end

    def step(self, *numbers: int) -> StepOutput:
        chunks = []
        for number in numbers:
            length = self._lengths.get(number, 2 * BLOCK)
            self._lengths[number] = length + 1
            blocks = self.blocks(number)[: length // BLOCK + 1]
            chunk = Chunk(tokens=[9 + number], start=length, blocks=blocks, wants=WANTS)
            chunks.append(chunk)
        return self._driver.run(*chunks)


def steps(driver: Driver) -> list[StepOutput]:
    """Sequences come, grow into new blocks, leave, and come back with other blocks."""
    sequences = Sequences(driver)
    for number, end in ((0, 70), (1, 95), (2, 66)):
        sequences.compute(number, end)
    found = [sequences.step(0, 1, 2) for _ in range(2)]
    found.append(sequences.step(0, 1, 2, 3, 4))  # two have nothing but the front
    found.append(sequences.step(4, 2, 0))
    sequences.compute(5, 100)  # what 1 had, after it was preempted
    found.append(sequences.step(5, 4, 2, 0, 3))
    # Contexts that are whole blocks, with the first in common.
    for block in (20, 21):
        driver.run(Chunk(tokens=TOKENS[BLOCK:-BLOCK][: BLOCK - 1], start=BLOCK, blocks=[5, block]))
    whole = [
        Chunk(tokens=[block], start=2 * BLOCK - 1, blocks=[5, block], wants=WANTS)
        for block in (20, 21)
    ]
    return [*found, driver.run(*whole), sequences.step(2)]


def logprobs(outputs: list[StepOutput]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    for output in outputs:
        assert output.logprobs is not None
    return np.concatenate([output.logprobs for output in outputs if output.logprobs is not None])


@pytest.mark.usefixtures("short_splits")  # all are split, as teams' are
@pytest.mark.parametrize("kv_dtype", ["f16", "int8"])
@pytest.mark.parametrize("variant", ["plain", "fused"])
def test_answers_are_those_of_sequences_that_read_all_they_see(
    variant: Literal["plain", "fused"],
    kv_dtype: Literal["f16", "int8"],
    stack: ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And each step takes as many launches, from graphs; what it reads of the cache is less."""
    monkeypatch.setattr(teams, "LEAST_SHARED", BLOCK)
    model = fitting(by_name("llama"))
    longer = model.config | {"max_position_embeddings": 256}
    path = write_model(replace(model, config=longer), tmp_path)
    options = replace(OPTIONS, decode_variant=variant, kv_dtype=kv_dtype)
    apart = steps(Driver(load_hip(stack, path, options)))
    together = steps(Driver(load_hip(stack, path, replace(options, shared_prefix="on"))))
    # A key or value between two halves, or between two int8 codes, may become either.
    rounding = 2e-3 if kv_dtype == "f16" else 5e-3
    np.testing.assert_allclose(logprobs(together), logprobs(apart), atol=rounding)
    costs = [
        (present(before.cost), present(now.cost))
        for before, now in zip(apart, together, strict=True)
    ]
    of_head = 2 * 2 * 64 if kv_dtype == "f16" else 2 * (64 + 4)
    token = of_head * longer["num_hidden_layers"] * longer["num_key_value_heads"]
    saved = [before.bytes_read - now.bytes_read for before, now in costs]
    assert saved == [token * tokens for tokens in (128, 128, 256, 128, 256, 32, 0)]
    assert [now.launches for _, now in costs] == [before.launches for before, _ in costs]


@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("name", ["olmo2", "hunyuan-moe"])
def test_norms_that_teams_do_not_know_have_a_launch_before_them(
    name: str, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of queries and keys as a whole, and those behind rope."""
    monkeypatch.setattr(teams, "LEAST_SHARED", BLOCK)
    model = fitting(by_name(name))
    longer = model.config | {"max_position_embeddings": 256}
    path = write_model(replace(model, config=longer), tmp_path)
    options = replace(OPTIONS, decode_variant="fused", graphs="off")
    apart = steps(Driver(load_hip(stack, path, options)))
    together = steps(Driver(load_hip(stack, path, replace(options, shared_prefix="on"))))
    np.testing.assert_allclose(logprobs(together), logprobs(apart), atol=2e-3)
    more = [
        present(now.cost).launches - present(before.cost).launches
        for before, now in zip(apart, together, strict=True)
    ]
    assert set(more[:-1]) == {longer["num_hidden_layers"]}
    assert more[-1] == 0  # of a sequence alone
