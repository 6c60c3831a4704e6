"""Hidden states come from the tokens that were asked for, whatever else is in the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rocmforge.backend.arrays import Float32Array
from tests.backend.conftest import Load
from tests.backend.driving import Chunk, Driver, make_step
from tests.data.models.text.tiny_models import PROMPT

Ranges = list[tuple[int, int]]


def hidden(driver: Driver, step_id: int, ranges: Ranges, *chunks: Chunk) -> Float32Array:
    """Sums of the states of these tokens of a step, [ranges, D]."""
    step = make_step(step_id, chunks, driver.runner.info.block_size)
    driver.runner.submit(replace(step, hidden_ranges=np.array(ranges, np.int32)))
    output = driver.runner.collect()
    assert output.hidden is not None
    assert output.hidden.shape == (len(ranges), driver.runner.info.hidden_size)
    assert output.hidden.dtype == np.float32
    return output.hidden


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_states_do_not_depend_on_how_a_prompt_is_cut(model: str, load: Load) -> None:
    driver = load(model)
    whole = Chunk(tokens=PROMPT, blocks=[0, 1, 2], wants=[])
    first = Chunk(tokens=PROMPT[:23], blocks=[5, 6, 7], wants=[])
    rest = Chunk(tokens=PROMPT[23:], start=23, blocks=[5, 6, 7], wants=[])
    other = Chunk(tokens=PROMPT[:9], blocks=[8])
    expected = [hidden(driver, i, [(at, at + 1)], whole)[0] for i, at in enumerate((22, 23))]
    beginning = hidden(driver, 2, [(22, 23)], first)
    end = hidden(driver, 3, [(2, 4), (9, 10)], other, rest)
    np.testing.assert_array_equal(beginning[0], expected[0])
    np.testing.assert_array_equal(end[1], expected[1])


def test_states_of_a_range_are_added_up(load: Load) -> None:
    driver = load("llama")
    whole = Chunk(tokens=PROMPT, blocks=[0, 1, 2], wants=[])
    states = [hidden(driver, i, [(i, i + 1)], whole)[0] for i in range(len(PROMPT))]
    total = hidden(driver, len(PROMPT), [(3, len(PROMPT) - 1)], whole)
    np.testing.assert_allclose(total[0], np.sum(states[3:-1], axis=0), atol=1e-4)


def test_a_step_that_asks_for_none_returns_none(load: Load) -> None:
    assert load("llama").run(Chunk(tokens=PROMPT, blocks=[0, 1, 2])).hidden is None
