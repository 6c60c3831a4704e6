"""Hidden states come from the tokens that were asked for, whatever else is in the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rocmforge.backend.protocol import Float32Array
from tests.backend.conftest import Load
from tests.backend.driving import Chunk, Driver, make_step
from tests.data.models.tiny_models import PROMPT


def hidden(driver: Driver, step_id: int, rows: list[int], *chunks: Chunk) -> Float32Array:
    """States of these tokens of a step, [rows, D]."""
    step = make_step(step_id, chunks, driver.runner.info.block_size)
    driver.runner.submit(replace(step, hidden_rows=np.array(rows, np.int32)))
    output = driver.runner.collect()
    assert output.hidden is not None
    assert output.hidden.shape == (len(rows), driver.runner.info.hidden_size)
    assert output.hidden.dtype == np.float32
    return output.hidden


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_states_do_not_depend_on_how_a_prompt_is_cut(model: str, load: Load) -> None:
    driver = load(model)
    whole = hidden(driver, 0, list(range(40)), Chunk(tokens=PROMPT, blocks=[0, 1, 2], wants=[]))
    first = Chunk(tokens=PROMPT[:23], blocks=[5, 6, 7], wants=[])
    rest = Chunk(tokens=PROMPT[23:], start=23, blocks=[5, 6, 7], wants=[])
    other = Chunk(tokens=PROMPT[:9], blocks=[8])
    beginning = hidden(driver, 1, [22, 0], first)
    end = hidden(driver, 2, [9, 25], other, rest)
    np.testing.assert_array_equal(beginning, whole[[22, 0]])
    np.testing.assert_array_equal(end, whole[[23, 39]])


def test_a_step_that_asks_for_none_returns_none(load: Load) -> None:
    assert load("llama").run(Chunk(tokens=PROMPT, blocks=[0, 1, 2])).hidden is None
