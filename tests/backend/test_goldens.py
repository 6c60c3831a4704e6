"""Every architecture against Transformers' implementation of the same random weights."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.conftest import Load
from tests.backend.driving import Chunk
from tests.data.models.text.tiny_models import GOLDEN_ROWS, MODELS, PROMPT, goldens
from tests.data.models.text.tiny_recurrent import LENGTHS, LONG_PROMPT

TOLERANCE = 3e-5
"""Of a log-probability, relative to the spread of the logits (a few units)."""


@pytest.mark.parametrize("name", [model.name for model in MODELS])
def test_logits_equal_those_of_transformers(name: str, load: Load) -> None:
    logits = np.array(goldens(name)["logits"])
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    chunk = Chunk(tokens=PROMPT, blocks=[3, 1, 2])
    got = load(name).logprobs(chunk, GOLDEN_ROWS)
    assert np.abs(got - expected).max() / logits.std() < TOLERANCE


def test_prompts_of_muse_of_any_length_say_what_they_say_in_transformers(load: Load) -> None:
    driver = load("muse-glimmer", max_context=1024, max_batched_tokens=1024, kv_blocks=50)
    for length, logits in zip(LENGTHS, goldens("muse-glimmer")["ends"], strict=True):
        expected = np.array(logits) - np.log(np.exp(logits).sum())
        chunk = Chunk(tokens=LONG_PROMPT[:length], blocks=range(50))
        found = driver.logprobs(chunk, [length - 1])[0]
        assert np.abs(found - expected).max() / np.std(logits) < TOLERANCE, length
        assert found.argmax() == expected.argmax()
