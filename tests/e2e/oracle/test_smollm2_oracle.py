"""SmolLM2 on the reference backend against llama.cpp in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.driving import Chunk, Driver, Want
from tests.e2e.oracle.model_oracle import BLOCKS, assert_continues_as, oracle, running

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Driver]:
    with running(smollm2_path) as driver:
        yield driver


@pytest.mark.parametrize("name", list(oracle("smollm2")["continuations"]))
def test_smollm2_continues_prompts_as_llama_cpp_does(name: str, smollm2: Driver) -> None:
    assert_continues_as(smollm2, oracle("smollm2")["continuations"][name])


def score(driver: Driver, ids: list[int], chunk_size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Log-probability of every token after the first."""
    pieces = []
    for start in range(0, len(ids) - 1, chunk_size):
        tokens = ids[start : start + chunk_size]
        targets = ids[start + 1 : start + 1 + len(tokens)]
        wants = [
            Want(token=row, target=target, num_logprobs=0) for row, target in enumerate(targets)
        ]
        output = driver.run(Chunk(tokens=tokens, start=start, blocks=BLOCKS, wants=wants))
        assert output.logprobs is not None
        pieces.append(output.logprobs)
    return np.concatenate(pieces)


def test_smollm2_perplexity_equals_that_of_llama_cpp(smollm2: Driver) -> None:
    expected = oracle("smollm2")["perplexity"]
    logprobs = score(smollm2, expected["ids"], 512)
    total = float(logprobs.astype(np.float64).sum())
    assert math.exp(-total / len(logprobs)) == pytest.approx(expected["ppl"], rel=0.002)
    assert total == pytest.approx(expected["sum_logprob"], rel=0.0005)


def test_smollm2_in_chunks_equals_one_shot_to_the_bit(smollm2: Driver) -> None:
    ids = oracle("smollm2")["perplexity"]["ids"][:300]
    np.testing.assert_array_equal(score(smollm2, ids, 37), score(smollm2, ids, 300))
