"""Rows of embeddings in a prompt, on the reference backend.

Rows of the model's own table must give what the tokens give, to the last bit.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.errors import BackendError
from tests.backend.conftest import Load
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import MODELS, PROMPT, by_name
from tests.support.engine.spans import (
    PLACES,
    PROMPTS,
    answers,
    begun_with,
    embedded,
    image,
    prompt_of,
)
from tests.support.models.options import SMALL
from tests.support.models.runners import load_reference

SAMPLING = SamplingParams(max_tokens=40, temperature=0.0, num_logprobs=2)


@pytest.mark.parametrize(
    # Its tokens have another embedding, too, which rows are not given.
    "name",
    [model.name for model in MODELS if model.name != "gemma4-e"],
)
def test_rows_of_the_table_give_what_their_tokens_give(name: str, tmp_path: Path) -> None:
    """In chunks, from shared blocks, and after preemption."""
    model = by_name(name)
    options = replace(SMALL, kv_blocks=10)
    with ExitStack() as stack:
        runner = load_reference(stack, write_model(model, tmp_path), options)
        table = begun_with(model)
        rows = [embedded(ids, table, places) for ids, places in zip(PROMPTS, PLACES, strict=True)]
        expected, _ = answers(runner, options, PROMPTS, SAMPLING)
        got, stats = answers(runner, options, rows, SAMPLING)
    assert got == expected
    assert stats.totals.preemptions > 0
    assert (stats.totals.prefix_hit_tokens > 0) is not bool(stats.slots_total)


def test_scores_of_the_tokens_between_rows_are_those_of_the_same_text(tmp_path: Path) -> None:
    model, sampling = by_name("llama"), SamplingParams(max_tokens=0, prompt_logprobs=1)
    with ExitStack() as stack:
        runner = load_reference(stack, write_model(model, tmp_path))
        rows = embedded(PROMPT, begun_with(model), [range(5, 30)])
        (expected,), _ = answers(runner, SMALL, [PROMPT], sampling)
        (got,), _ = answers(runner, SMALL, [rows], sampling)
    want = [None if 5 <= at < 30 else each for at, each in enumerate(expected.prompt_logprobs, 1)]
    assert got.prompt_logprobs == want


def test_rows_are_not_scaled_as_those_of_the_table_are(load: Load, tmp_path: Path) -> None:
    """Gemma multiplies the rows of its table by the root of their size."""
    model = by_name("gemma3")
    runner = load("gemma3").runner
    table = begun_with(model)
    unscaled = table / np.float32(np.sqrt(model.config["hidden_size"]))
    prompts = [embedded(PROMPT, rows, [range(20)]) for rows in (table, unscaled)]
    (tokens,), _ = answers(runner, SMALL, [PROMPT], SAMPLING)
    (scaled, other), _ = answers(runner, SMALL, prompts, SAMPLING)
    assert scaled == tokens
    assert other.logprobs != tokens.logprobs


def test_a_step_of_rows_of_another_width_is_refused(load: Load) -> None:
    with pytest.raises(BackendError, match="step 0"):
        answers(load("llama").runner, SMALL, [prompt_of(image(0, 3))], SAMPLING)
