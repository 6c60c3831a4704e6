"""Rotations of tokens whose position differs from axis to axis, as it does within images.

They get rows of their own in the model's table, behind those for positions that are one number: all
kernels find the rotation of a token by the number of a row. A tower's tokens all have such rows.
"""

from __future__ import annotations

import numpy as np

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import StepInput
from rocmforge.models.rope import AxisRotation
from rocmforge_hip.device.opening import Device
from rocmforge_hip.ops.attention.cached import DeviceRopeTable
from rocmforge_hip.run.embeddings import RowStaging
from rocmforge_hip.run.pipeline import Lane


class AxisRows:
    """Writes rows of the table before each step that needs some.

    Args:
        device: Has the table.
        rotation: Makes rows.
        table: With room for those of a step, from `first_row` on.
        first_row: Behind the rows by position; 0: there are none.
        most: Rows of a step.
    """

    def __init__(
        self,
        device: Device,
        rotation: AxisRotation,
        table: DeviceRopeTable,
        first_row: int,
        most: int,
    ) -> None:
        pairs = len(rotation.axes)
        self._rotation = rotation
        self._table = table
        self._first = first_row
        self._cos, self._sin = (RowStaging(device, most, pairs) for _ in range(2))

    def stage(self, step: StepInput, lane: Lane) -> Int32Array | None:
        """Starts copying the rows that a step needs; returns the row of each token, [T].

        Returns:
            None if each token rotates by its position.

        Raises:
            OutOfMemory: There is no memory to pin.
        """
        positions = step.axis_positions
        if not len(positions):
            return None
        rows = positions[:, 0].copy()
        own = np.arange(len(rows))
        if self._first:
            own = np.flatnonzero((positions != positions[:, :1]).any(axis=1))
        places = np.arange(self._first, self._first + len(own), dtype=np.int32)
        rows[own] = places
        asked = int(self._rotation.axes.max()) + 1 - positions.shape[1]  # of heads with zeros
        made = self._rotation.rows(np.pad(positions[own], ((0, 0), (0, max(asked, 0)))))
        staging = (self._cos, made.cos, self._table.cos), (self._sin, made.sin, self._table.sin)
        for waiting, values, target in staging:
            staged = waiting.stage((values,), places, lane)
            if staged is not None:
                staged.copy_to(target)
        return rows
