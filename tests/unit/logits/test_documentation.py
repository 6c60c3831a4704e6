"""The example of docs/logits-processors.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.launches.processors import process

PAGE = Path(__file__).parents[3] / "docs/logits-processors.md"


def test_the_example_drops_tokens_as_described() -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(compile(found.group(1), str(PAGE), "exec"), names)
    logits = np.random.default_rng(0).normal(0, 3, 60).astype(np.float32)
    probabilities = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum()
    expected = probabilities >= 0.3 * probabilities.max() ** 2
    assert (process(names["top_a"], logits, a=0.3) > -np.inf).tolist() == expected.tolist()
    assert 1 < expected.sum() < 60
