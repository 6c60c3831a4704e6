"""Gemma 3 270m on the reference backend against llama.cpp in float32.

In a module of its own: both models at once would take more memory than a process may.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.driving import Driver
from tests.e2e.oracle.model_oracle import assert_continues_as, oracle, running

pytestmark = [
    *(pytest.mark.model, pytest.mark.slow, pytest.mark.large),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Iterator[Driver]:
    with running(gemma3_path) as driver:
        yield driver


@pytest.mark.parametrize("name", list(oracle("gemma3")["continuations"]))
def test_gemma3_continues_prompts_as_llama_cpp_does(name: str, gemma3: Driver) -> None:
    assert_continues_as(gemma3, oracle("gemma3")["continuations"][name])
