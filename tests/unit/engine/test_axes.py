"""Positions on several axes: of text, of rows of an image, and of what follows it."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge.backend.step import NO_SOURCE
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.ipc.prompt import EmbeddingSpan, Prompt, TokenSpan, token_span
from rocmforge.engine.schedule.batch import build_step
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.sequence.axes import AxisPositions, axis_positions
from rocmforge.engine.sequence.sequence import Sequence
from tests.unit.engine.helpers import request


def image(rows: int, columns: int) -> EmbeddingSpan:
    count = rows * columns
    return EmbeddingSpan(
        rows=memoryview(bytes(16 * count)),
        num_rows=count,
        identity=b"i",
        placeholder=2,
        grid=(rows, columns),
    )


def text(*ids: int) -> TokenSpan:
    return token_span(ids)


# As in section 2.1 of arXiv:2409.12191: an image is at one time, and text goes on behind its
# longer side.
PROMPT = Prompt(spans=(text(5, 6), image(2, 3), text(7), image(3, 1), text(8)))
EXPECTED = [
    *([0, 0, 0], [1, 1, 1]),
    *([2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]),
    [5, 5, 5],
    *([6, 6, 6], [6, 7, 6], [6, 8, 6]),
    [9, 9, 9],
]


def test_rows_of_an_image_have_a_row_and_a_column_and_text_goes_on_behind_them() -> None:
    found = AxisPositions(PROMPT).between(0, len(PROMPT))
    assert found.tolist() == EXPECTED


def test_generated_tokens_are_a_constant_away_from_their_index() -> None:
    found = AxisPositions(PROMPT).between(12, 17)
    assert found.tolist() == [[each] * 3 for each in (9, 10, 11, 12, 13)]


@pytest.mark.parametrize("cut", range(18))
def test_a_chunk_may_begin_anywhere(cut: int) -> None:
    axes = AxisPositions(PROMPT)
    parts = axes.between(0, cut), axes.between(cut, 17)
    np.testing.assert_array_equal(np.concatenate(parts), axes.between(0, 17))


def test_rows_without_a_grid_have_positions_as_text_has() -> None:
    span = EmbeddingSpan(rows=memoryview(bytes(32)), num_rows=2, identity=b"i", placeholder=2)
    assert axis_positions(Prompt(spans=(text(1), span))) is None


def chunk_of(number: int, prompt: Prompt, start: int, count: int) -> Chunk:
    seq = Sequence(request(number, prompt, SamplingParams(max_tokens=2)), block_size=16)
    seq.hold(number)
    return Chunk(
        sequence=seq,
        start=start,
        num_tokens=count,
        source_row=NO_SOURCE,
        first_row=0,
        score_start=0,
        num_scores=0,
        samples=False,
    )


def test_a_step_has_axes_for_all_of_its_tokens_if_one_sequence_has_some() -> None:
    plain = Prompt(spans=(text(1, 2, 3, 4, 5),))
    step = build_step(0, [chunk_of(1, plain, 1, 3), chunk_of(2, PROMPT, 6, 4)], 16)
    assert step.axis_positions.tolist() == [[1] * 3, [2] * 3, [3] * 3, *EXPECTED[6:10]]
    assert step.positions.tolist() == [1, 2, 3, 6, 7, 8, 9], "caches go on by index"
    assert not len(build_step(0, [chunk_of(1, plain, 1, 3)], 16).axis_positions)
