"""Real models on the reference backend against llama.cpp in float32."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge_reference.backend import create
from tests.backend.driving import Chunk, Driver, Want
from tests.support.options import SMALL

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]  # about a minute on two idle cores

ORACLE = Path(__file__).parents[1] / "data/models/oracle"
NEAR_TIE = 0.01  # nats; two correct implementations may part at such a step
BLOCKS = range(160)


def oracle(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ORACLE / f"{name}.json").read_text())
    return found


@contextmanager
def running(path: Path) -> Iterator[Driver]:
    options = replace(
        SMALL,
        max_context=2560,
        max_sequences=1,
        max_batched_tokens=512,
        kv_blocks=len(BLOCKS),
        kv_dtype="f32",
    )
    with closing(create().load(path, options, lambda stage, share: None)) as runner:
        yield Driver(runner)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Driver]:
    with running(smollm2_path) as driver:
        yield driver


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Iterator[Driver]:
    with running(gemma3_path) as driver:
        yield driver


def assert_continues_as(driver: Driver, expected: dict[str, Any]) -> None:
    prompt = expected["prompt_ids"]
    wants = [Want(num_logprobs=20)]
    first = driver.run(Chunk(tokens=prompt, blocks=BLOCKS, wants=wants))
    assert first.top_ids is not None
    assert first.top_logprobs is not None
    found = dict(zip(first.top_ids[0].tolist(), first.top_logprobs[0].tolist(), strict=True))
    for token, logprob in expected["top10"]:
        assert found[token] == pytest.approx(logprob, abs=0.02)

    token = int(first.token_ids[0])
    for step, (wanted, gap) in enumerate(zip(expected["ids"], expected["gaps"], strict=True)):
        if token != wanted:
            assert gap < NEAR_TIE, f"step {step}: {token} instead of {wanted}"
            return
        chunk = Chunk(tokens=[token], start=len(prompt) + step, blocks=BLOCKS)
        token = int(driver.run(chunk).token_ids[0])


@pytest.mark.parametrize("name", list(oracle("smollm2")["continuations"]))
def test_smollm2_continues_prompts_as_llama_cpp_does(name: str, smollm2: Driver) -> None:
    assert_continues_as(smollm2, oracle("smollm2")["continuations"][name])


@pytest.mark.parametrize("name", list(oracle("gemma3")["continuations"]))
def test_gemma3_continues_prompts_as_llama_cpp_does(name: str, gemma3: Driver) -> None:
    assert_continues_as(gemma3, oracle("gemma3")["continuations"][name])


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
