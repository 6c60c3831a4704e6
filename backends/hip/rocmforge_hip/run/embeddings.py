"""Rows of embeddings on their way to a step.

They wait in pinned memory beside the step's other inputs, and are copied straight to where the
decoder begins, once the table's rows are there. So they take nothing of the device's memory.
"""

from __future__ import annotations

from rocmforge.backend.protocol import StepInput
from rocmforge_hip.device.memory import PinnedBuffer
from rocmforge_hip.device.opening import Device
from rocmforge_hip.ops.step import StagedRows
from rocmforge_hip.run.pipeline import Lane


class RowStaging:
    """Pinned memory for the rows of each step in flight; few models ever need it.

    Args:
        device: Owns the memory.
        most_rows: Of a step.
        hidden_size: Elements of a row.
    """

    def __init__(self, device: Device, most_rows: int, hidden_size: int) -> None:
        self._device = device
        self._shape = most_rows, hidden_size
        self._buffers: dict[Lane, PinnedBuffer] = {}

    def stage(self, step: StepInput, lane: Lane) -> StagedRows | None:
        """Takes the rows of a step that is not larger than the largest; None if it has none.

        Raises:
            OutOfMemory: There is no memory to pin.
        """
        count = len(step.embedding_tokens)
        if not count:
            return None
        most_rows, hidden_size = self._shape
        assert step.embedding_rows.shape == (count, hidden_size), "rows of another model"
        if lane not in self._buffers:
            size = most_rows * hidden_size * 4
            self._buffers[lane] = self._device.memory.pinned(size, "embeddings of a step")
        buffer, rows = self._buffers[lane], step.embedding_rows
        buffer.bytes[: rows.nbytes].view(rows.dtype)[:] = rows.reshape(-1)
        driver, stream = self._device.driver, self._device.stream
        return StagedRows(driver, stream, buffer.address, step.embedding_tokens)
