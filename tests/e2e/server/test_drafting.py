"""Speculative decoding on a real backend: the tokens are those without it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from rocmforge.backend import registry
from rocmforge.engine.ipc.params import SamplingParams
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.support.engine.core import make_core, tokens_of
from tests.support.fakes.timed import Timed
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

OPTIONS = replace(SMALL, max_sequences=8, max_batched_tokens=64, kv_blocks=64)
MAX_TOKENS = 60
PROMPTS = [tuple((7 * i * k) % 12 for i in range(20)) for k in range(1, 9)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of a few tokens, which repeats itself."""
    recipe = by_name("llama")
    config = recipe.config | {"vocab_size": 12}
    return write_model(replace(recipe, config=config), tmp_path_factory.mktemp("model"))


def generate(model: Path, sampling: SamplingParams) -> tuple[list[list[int]], int]:
    """Returns the answers to all prompts, and how many draft tokens were accepted."""
    runner = load_file(registry.create("reference"), model, OPTIONS)
    with closing(runner):
        core = make_core(Timed(runner), OPTIONS)
        answers, stats = tokens_of(core, [(prompt, sampling) for prompt in PROMPTS])
    return answers, stats.totals.accepted_tokens


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
    drafted, accepted = generate(model, msgspec.structs.replace(sampling, prompt_lookup_tokens=5))
    assert drafted == plain
    # How many tokens are drafted depends on how many were accepted (`speculation`).
    assert accepted > 0, "without accepted tokens this shows nothing"
