"""The most probable tokens of recorded rows as bytes: many of them cross between processes."""

from __future__ import annotations

from typing import Final

import numpy as np

from rocmforge.backend.arrays import Float32Array, Int32Array

TOP: Final = 20
"""The most probable tokens whose log-probabilities are recorded at each place."""
ROW_BYTES: Final = TOP * 8
"""Of a place: token ids as int32, then log-probabilities as float32, in native order."""


def pack(ids: Int32Array, logprobs: Float32Array) -> bytes:
    """Returns rows of token ids and log-probabilities, [N, TOP] each, most probable first."""
    assert ids.shape == logprobs.shape == (len(ids), TOP), "the most probable ones of each row"
    rows = np.empty((len(ids), 2, TOP), np.int32)
    rows[:, 0] = ids
    rows[:, 1] = logprobs.view(np.int32)
    return rows.tobytes()


def unpack(data: bytes) -> tuple[Int32Array, Float32Array]:
    """Returns what `pack` was given; a place behind the last token of a vocabulary has the id -1.

    Args:
        data: any number of rows, one behind the other.
    """
    rows = np.frombuffer(data, np.int32).reshape(-1, 2, TOP)
    return rows[:, 0], rows[:, 1].view(np.float32)
