"""What a step says of the logits processors of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rocmforge.backend.step import NO_SOURCE, ProcessorBatch
from rocmforge.engine.ipc.params import ProcessorUse, SamplingParams
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.processors import UNKNOWN, build_processors
from rocmforge.engine.sequence.sequence import Sequence as EngineSequence
from rocmforge.logits.processor import uniform_number
from tests.unit.engine.helpers import request

PROMPT = [7, 8, 9, 10]
WHOLE = ProcessorUse(name="whole", numbers=(1.0, 2.0), window=-1)
LAST_TWO = ProcessorUse(name="last_two", numbers=(3.0,), window=2)
NONE = ProcessorUse(name="none", numbers=(), token_set=b"\x05\0\0\0\0\0\0\x80")


def chunk(
    *uses: ProcessorUse, generated: Sequence[int] = (), row: int = 0, source: int = NO_SOURCE
) -> Chunk:
    """The step that draws the next token, after some that were drawn before."""
    sampling = SamplingParams(max_tokens=10, seed=5, processors=uses)
    sequence = EngineSequence(request(0, PROMPT, sampling), 16)
    for token in generated:
        sequence.append(token)
    length = len(PROMPT) + len(generated)
    return Chunk(
        sequence=sequence,
        start=length - 1,
        num_tokens=1,
        source_row=source,
        first_row=row,
        score_start=length,
        num_scores=0,
        samples=True,
    )


def build(*chunks: Chunk) -> ProcessorBatch:
    drawn = [chunk.start + 1 for chunk in chunks]
    batch = build_processors(list(chunks), np.array(drawn, np.int32))
    assert batch is not None
    return batch


def test_rows_without_processors_make_no_batch() -> None:
    assert build_processors([chunk()], np.array([4], np.int32)) is None


def test_uses_stand_in_the_order_of_rows_and_requests() -> None:
    batch = build(chunk(WHOLE, LAST_TWO), chunk(row=1), chunk(NONE, row=2))
    assert batch.names == ("whole", "last_two", "none")
    assert batch.rows.tolist() == [0, 0, 2]
    assert batch.numbers.tolist() == [[1, 2], [3, 0], [0, 0]]
    assert batch.token_sets.tolist() == [[0, 0], [0, 0], [5, 1 << 31]]
    assert batch.windows.tolist() == [4, 2, 0]


def test_the_history_is_as_long_as_the_widest_window() -> None:
    batch = build(chunk(LAST_TWO, generated=[20]), chunk(LAST_TWO, WHOLE, generated=[30], row=1))
    assert batch.history_offsets.tolist() == [0, 2, 7]
    assert batch.history.tolist() == [10, 20, *PROMPT, 30]
    assert batch.prompt_lengths.tolist() == [1, 4]


def test_the_token_on_the_device_is_left_open() -> None:
    batch = build(chunk(WHOLE, generated=[20, 21], source=3))
    assert batch.history.tolist() == [*PROMPT, 20, UNKNOWN]


def test_random_numbers_belong_to_seed_position_and_name() -> None:
    batch = build(chunk(WHOLE, LAST_TWO))
    expected = [uniform_number(5, 4, name) for name in ("whole", "last_two")]
    np.testing.assert_allclose(batch.uniforms, expected)
    again = build(chunk(LAST_TWO), chunk(WHOLE, LAST_TWO, row=1))
    assert again.uniforms[1:].tolist() == batch.uniforms.tolist()
