"""A real model with LoRA adapters on the reference backend against llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.backend.step import NO_ADAPTER
from rocmforge.models.lora import AdapterSpec
from rocmforge_reference.backend import create
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.text.tiny_adapters import write_random_adapter
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

ORACLE = Path(__file__).parents[2] / "data/models/oracle/smollm2_adapters.json"
NEAR_TIE = 0.01  # nats; two correct implementations may part at such a step
SEEDS = (1, 2)
PLAIN = [7042, 30, 198, 198]  # llama.cpp's continuation without an adapter


@pytest.fixture(scope="module")
def driver(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """SmolLM2 with two adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    adapters = tuple(
        AdapterSpec(
            name=str(seed),
            path=str(write_random_adapter(folder / f"{seed}.gguf", smollm2_path, seed)),
        )
        for seed in SEEDS
    )
    options = replace(SMALL, max_batched_tokens=64, kv_blocks=12, kv_dtype="f32", adapters=adapters)
    with closing(load_file(create(), smollm2_path, options)) as runner:
        yield Driver(runner)


def test_adapters_side_by_side_say_what_llama_cpp_says_with_each(driver: Driver) -> None:
    """Two adapters and none, in the same steps."""
    oracle: dict[str, dict[str, Any]] = json.loads(ORACLE.read_text())
    expected = [oracle[str(seed)] for seed in SEEDS]
    prompt = expected[0]["prompt_ids"]
    adapters = (0, 1, NO_ADAPTER)
    blocks = [range(4 * place, 4 * place + 4) for place in range(3)]
    output = driver.run(
        *(
            Chunk(tokens=prompt, blocks=own, wants=[Want(num_logprobs=20)], adapter=adapter)
            for own, adapter in zip(blocks, adapters, strict=True)
        )
    )
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    for ids, logprobs, wanted in zip(output.top_ids, output.top_logprobs, expected, strict=False):
        found = dict(zip(ids.tolist(), logprobs.tolist(), strict=True))
        for token, logprob in wanted["top10"]:
            assert found[token] == pytest.approx(logprob, abs=0.02)

    said: list[list[int]] = [[token] for token in output.token_ids.tolist()]
    for step in range(len(expected[0]["ids"]) - 1):
        output = driver.run(
            *(
                Chunk(tokens=tokens[-1:], start=len(prompt) + step, blocks=own, adapter=adapter)
                for tokens, own, adapter in zip(said, blocks, adapters, strict=True)
            )
        )
        for tokens, token in zip(said, output.token_ids.tolist(), strict=True):
            tokens.append(token)
    for tokens, wanted in zip(said, expected, strict=False):
        parted = next(
            (
                i
                for i, pair in enumerate(zip(tokens, wanted["ids"], strict=True))
                if pair[0] != pair[1]
            ),
            None,
        )
        assert parted is None or wanted["gaps"][parted] < NEAR_TIE, parted
    assert said[2][: len(PLAIN)] == PLAIN
