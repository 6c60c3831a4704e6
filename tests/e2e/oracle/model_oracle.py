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

    token = int(first.token_ids[0])
    for step, (wanted, gap) in enumerate(zip(expected["ids"], expected["gaps"], strict=True)):
        if token != wanted:
            assert gap < NEAR_TIE, f"step {step}: {token} instead of {wanted}"
            return
        chunk = Chunk(tokens=[token], start=len(prompt) + step, blocks=BLOCKS)
        token = int(driver.run(chunk).token_ids[0])
