"""Rows with a mask draw from what it allows; the reference's definition, not a backend's speed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rocmforge.backend.arrays import Float32Array, UInt32Array
from rocmforge.backend.step import SamplingBatch
from rocmforge_reference.sampling import NO_TOKEN, sample

V = 70


def batch(rows: int, temperature: float, allowed: UInt32Array | None) -> SamplingBatch:
    return dataclasses.replace(
        SamplingBatch.greedy(rows),
        temperature=np.full(rows, temperature, np.float32),
        seed=np.arange(rows, dtype=np.uint64),
        allowed=allowed,
    )


def mask(rows: int, tokens: list[int]) -> UInt32Array:
    """All rows alike; the bits beyond the vocabulary are set and must not matter."""
    words = np.zeros(3, np.uint32)
    words[2] = 0xFFFFFFC0
    for token in tokens:
        words[token // 32] |= np.uint32(1 << token % 32)
    return np.tile(words, (rows, 1))


def draw(logits: Float32Array, temperature: float, allowed: UInt32Array | None) -> list[int]:
    rows = len(logits)
    pending = np.full(rows, NO_TOKEN, np.int32)
    drawn = sample(logits.copy(), batch(rows, temperature, allowed), pending)
    ids: list[int] = drawn.token_ids.tolist()
    return ids


def some_logits(rows: int) -> Float32Array:
    return np.random.default_rng(0).normal(size=(rows, V)).astype(np.float32)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_only_allowed_tokens_are_drawn(temperature: float) -> None:
    tokens = [0, 31, 32, 63, 64, 69]
    drawn = draw(some_logits(64), temperature, mask(64, tokens))
    assert set(drawn) <= set(tokens)
    assert len(set(drawn)) > 1


def test_greedy_takes_the_best_allowed_token() -> None:
    logits = some_logits(1)
    order = np.argsort(-logits[0])
    assert draw(logits, 0.0, mask(1, [int(order[1]), int(order[5])])) == [order[1]]


def test_a_row_that_allows_everything_draws_as_without_a_mask() -> None:
    logits = some_logits(8)
    allowed = np.full((8, 3), 0xFFFFFFFF, np.uint32)
    allowed[3] = mask(1, [5])[0]
    free, constrained = draw(logits, 1.0, None), draw(logits, 1.0, allowed)
    assert constrained[3] == 5
    assert constrained[:3] + constrained[4:] == free[:3] + free[4:]


def test_a_mask_leaves_the_log_probabilities_of_the_model() -> None:
    logits = some_logits(1)
    wants = dataclasses.replace(batch(1, 0.0, mask(1, [7])), num_logprobs=np.zeros(1, np.int32))
    scored = sample(logits.copy(), wants, np.full(1, NO_TOKEN, np.int32))
    assert scored.logprobs is not None
    expected = logits[0, 7] - np.log(np.exp(logits[0].astype(np.float64)).sum())
    assert scored.logprobs[0] == pytest.approx(expected, abs=1e-5)
