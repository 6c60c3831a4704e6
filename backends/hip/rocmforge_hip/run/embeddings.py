"""Rows of embeddings, or patches of images, on their way to a step.

They wait in pinned memory beside the step's other inputs, and are copied straight to where the
model begins; rows of embeddings once the table's rows are there. So these take nothing of the
device's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge_hip.device.memory import HostCopies, PinnedBuffer
from rocmforge_hip.device.opening import Device
from rocmforge_hip.ops.step.device_step import StagedRows
from rocmforge_hip.run.pipeline import Lane


class RowStaging:
    """Pinned memory for the rows of each step in flight; few models ever need it.

    Args:
        device: Owns the memory.
        most_rows: Of a step.
        features: Elements of a row.
        dtype: As they wait.
        parts: Rows of a token, at most: for the model's beginning, and for its first layers.
    """

    def __init__(
        self,
        device: Device,
        most_rows: int,
        features: int,
        dtype: npt.DTypeLike = np.float32,
        parts: int = 1,
    ) -> None:
        self._device = device
        self._shape = most_rows, features
        self._most_parts = parts
        self._dtype = np.dtype(dtype)
        self._buffers: dict[Lane, PinnedBuffer] = {}

    def stage(
        self, pieces: Sequence[Float32Array], tokens: Int32Array, lane: Lane
    ) -> StagedRows | None:
        """Takes the rows of a step that is not larger than the largest; None if it has none.

        Args:
            pieces: All rows, [e, parts * features] each, or less than one part. What a piece lacks
                are zeros.
            tokens: [E], of the step, in ascending order.
            lane: Of the step.

        Raises:
            OutOfMemory: There is no memory to pin.
        """
        count = len(tokens)
        if not count:
            return None
        most_rows, features = self._shape
        parts = max(1, *(rows.shape[1] // features for rows in pieces))
        assert sum(map(len, pieces)) == count, "a row for each token"
        assert parts <= self._most_parts, "rows of another model"
        size = self._dtype.itemsize
        if lane not in self._buffers:
            most = most_rows * features * size * self._most_parts
            self._buffers[lane] = self._device.memory.pinned(most, "embeddings of a step")
        buffer = self._buffers[lane]
        staged = buffer.bytes[: parts * count * features * size].view(self._dtype)
        start, by_part = 0, staged.reshape(parts, count, features)
        for rows in pieces:
            _fill(by_part[:, start : start + len(rows)], rows, self._device.memory.copies)
            start += len(rows)
        driver, stream = self._device.driver, self._device.stream
        return StagedRows(driver, stream, buffer.address, tokens, parts)


def _fill(by_part: npt.NDArray[Any], rows: Float32Array, copies: HostCopies) -> None:
    """Copies rows, [e, own], to where each part of theirs waits: [parts, e, features]."""
    features, own = by_part.shape[2], rows.shape[1]
    whole, rest = divmod(own, features)
    assert not (whole and rest), "rows of another model"
    if rest:
        by_part[0, :, :own], by_part[0, :, own:] = rows, 0
    else:
        copies.copy(by_part[:whole], rows.reshape(len(rows), whole, features).swapaxes(0, 1))
    by_part[max(whole, 1) :] = 0
