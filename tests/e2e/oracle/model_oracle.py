"""What tests of real models on the reference backend share: llama.cpp's answers in float32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge_reference.backend import create
from tests.backend.driving import Chunk, Driver, Want
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

ORACLE = Path(__file__).parents[2] / "data/models/oracle"
NEAR_TIE = 0.01  # nats; two correct implementations may part at such a step
BLOCKS = range(160)
ALONE = 12  # tokens of a continuation that have a step of their own


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
    with closing(load_file(create(), path, options)) as runner:
        yield Driver(runner)


def assert_continues_as(driver: Driver, expected: dict[str, Any]) -> None:
    prompt = expected["prompt_ids"]
    wants = [Want(num_logprobs=20)]
    first = driver.run(Chunk(tokens=prompt, blocks=BLOCKS, wants=wants))
    assert first.top_ids is not None
    assert first.top_logprobs is not None
    found = dict(zip(first.top_ids[0].tolist(), first.top_logprobs[0].tolist(), strict=True))
    for token, logprob in expected["top10"]:
        assert found[token] == pytest.approx(logprob, abs=0.02)

    found_ids = [int(first.token_ids[0]), *follow(driver, prompt, expected["ids"])]
    for step, (token, wanted, gap) in enumerate(
        zip(found_ids, expected["ids"], expected["gaps"], strict=True)
    ):
        if token != wanted:
            assert gap < NEAR_TIE, f"step {step}: {token} instead of {wanted}"
            return


def follow(driver: Driver, prompt: list[int], ids: list[int]) -> list[int]:
    """The most likely token after each of these but the last.

    Some of them come alone, as if they had been drawn, the others all at once: a step of a single
    token takes as long as one of eight.
    """
    chunks = [ids[step : step + 1] for step in range(ALONE)]
    chunks.append(ids[ALONE:-1])
    start, found = len(prompt), list[int]()
    for tokens in chunks:
        wants = [Want(token=row) for row in range(len(tokens))]
        output = driver.run(Chunk(tokens=tokens, start=start, blocks=BLOCKS, wants=wants))
        found += output.token_ids.tolist()
        start += len(tokens)
    return found
