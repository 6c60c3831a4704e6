"""Every architecture against Transformers' implementation of the same random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.backend.conftest import Load
from tests.backend.driving import Chunk
from tests.data.models.tiny_models import GOLDEN_ROWS, MODELS, PROMPT

GOLDENS = Path(__file__).parents[1] / "data/models/goldens.json"
TOLERANCE = 3e-5
"""Of a log-probability, relative to the spread of the logits (a few units)."""


@pytest.fixture(scope="module")
def goldens() -> dict[str, list[list[float]]]:
    """Logits of Transformers by model; see tests/data/models/make_goldens.py."""
    found: dict[str, list[list[float]]] = json.loads(GOLDENS.read_text())
    return found


@pytest.mark.parametrize("name", [model.name for model in MODELS])
def test_logits_equal_those_of_transformers(
    name: str, load: Load, goldens: dict[str, list[list[float]]]
) -> None:
    logits = np.array(goldens[name])
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    chunk = Chunk(tokens=PROMPT, blocks=[3, 1, 2])
    got = load(name).logprobs(chunk, GOLDEN_ROWS)
    worst = np.abs(got - expected).max() / logits.std()
    assert worst < TOLERANCE
