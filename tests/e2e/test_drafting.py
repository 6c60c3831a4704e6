"""Speculative decoding on a real backend: the tokens are those without it."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from rocmforge.backend import registry
from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.core import EngineCore
from rocmforge.engine.messages import Submit
from rocmforge.engine.params import GenerateRequest, SamplingParams
from rocmforge.engine.plan import SchedulerLimits
from tests.data.models.tiny_models import by_name, write_model
from tests.support.timeless import Timeless

MAX_TOKENS = 60
PROMPTS = [tuple((7 * i * k) % 12 for i in range(20)) for k in range(1, 9)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of a few tokens, which repeats itself."""
    recipe = by_name("llama")
    config = recipe.config | {"vocab_size": 12}
    return write_model(replace(recipe, config=config), tmp_path_factory.mktemp("model"))


def generate(model: Path, sampling: SamplingParams) -> tuple[list[list[int]], int]:
    """The answers to all prompts, and how many guesses were right."""
    options = LoadOptions(
        device=None,
        max_context=128,
        max_sequences=8,
        max_batched_tokens=64,
        kv_blocks=64,
        kv_dtype="auto",
        memory_utilization=0.9,
    )
    limits = SchedulerLimits(max_sequences=8, max_batched_tokens=64, max_waiting=8)
    runner = registry.create("reference").load(model, options, lambda stage, share: None)
    answers: list[list[int]] = [[] for _ in PROMPTS]
    accepted = 0
    with closing(runner):
        core = EngineCore(Timeless(runner), limits, time.monotonic_ns)
        commands = [
            Submit(
                request=GenerateRequest(
                    request_id=i, prompt_ids=prompt, sampling=sampling, eos_ids=(), arrival_ns=0
                )
            )
            for i, prompt in enumerate(PROMPTS)
        ]
        while commands or core.has_work:
            report = core.step(commands)
            commands = []
            for event in report.events:
                assert event.error is None
                answers[event.request_id] += event.token_ids
            accepted = report.stats.accepted_tokens_total
    return answers, accepted


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=MAX_TOKENS, temperature=0),
        SamplingParams(max_tokens=MAX_TOKENS, temperature=0.7, top_p=0.9, seed=5),
        SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, repetition_penalty=1.2, seed=6),
        SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, frequency_penalty=0.3, seed=7),
    ],
    ids=["greedy", "sampled", "repetition penalty", "frequency penalty"],
)
def test_greedy_and_sampled_tokens_are_those_without_drafts(
    model: Path, sampling: SamplingParams
) -> None:
    plain, _ = generate(model, sampling)
    drafted, accepted = generate(model, msgspec.structs.replace(sampling, num_drafts=5))
    assert drafted == plain
    # How many guesses are made is decided by how many were right (`speculation`).
    assert accepted > 0, "without right guesses this shows nothing"
