"""The places of a step's inputs in one pinned buffer.

They travel in one copy. The place of each array follows from the `StepShape` alone, so a captured
graph finds it there again. `output` has the way back.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import StepInput
from rocmforge_hip.device.memory import ArraySpec, DeviceArray
from rocmforge_hip.device.records import leaves, mapped
from rocmforge_hip.ops.step.arrays import StepArrays, specs
from rocmforge_hip.ops.step.contents import PADDING_SLOT, contents
from rocmforge_hip.ops.step.needs import NO_LISTS, ListSizes
from rocmforge_hip.ops.step.shape import StepShape
from rocmforge_hip.weights.formats import round_up

_ALIGN: Final = 16


class Section(NamedTuple):
    """The place of one array in the input buffer."""

    offset: int  # bytes
    stop: int  # byte behind it
    shape: tuple[int, ...]
    elements: int
    dtype: np.dtype[Any]


class StepLayout:
    """The places of a step's arrays in its buffer, for steps of one shape."""

    def __init__(self, shape: StepShape, lists: ListSizes = NO_LISTS) -> None:
        self.shape = shape
        self._end = 0
        self._sections: StepArrays[Section] = mapped(specs(shape, lists), ArraySpec, self._place)
        self._in_order = leaves(self._sections, Section)

    @property
    def nbytes(self) -> int:
        """Bytes to copy, in whole words of a kernel that may do that."""
        return round_up(self._end, _ALIGN)

    @property
    def masks(self) -> Section:
        """The masks of all rows, the last of the arrays."""
        return self._sections.allowed

    def _place(self, name: str, what: ArraySpec) -> Section:
        offset = round_up(self._end, _ALIGN)
        self._end = offset + what.nbytes
        return Section(offset, self._end, what.shape, math.prod(what.shape), what.dtype)

    def arrays(self, base: int) -> StepArrays[DeviceArray]:
        """Returns all arrays of a buffer at this address in device memory."""

        def there(name: str, section: Section) -> DeviceArray:
            return DeviceArray(base + section.offset, section.shape, section.dtype)

        found: StepArrays[DeviceArray] = mapped(self._sections, Section, there)
        return found

    def pack(
        self,
        step: StepInput,
        buffer: npt.NDArray[np.uint8],
        whole: StepInput | None = None,
        rope_rows: Int32Array | None = None,
        teams: Int32Array | None = None,
    ) -> None:
        """Writes a step that is not larger than the shape; what is left over becomes padding.

        Args:
            step: The step.
            buffer: Where it goes.
            whole: The step as layers with states take it, if its sequences are others.
            rope_rows: What tokens rotate by, [T], where it is not their positions.
            teams: `Teams.rows`, if the shape has teams.
        """
        found = leaves(contents(step, whole or step, self.shape, rope_rows, teams), tuple)
        for section, (values, padding) in zip(self._in_order, found, strict=True):
            if not section.elements:
                continue
            target = buffer[section.offset : section.stop].view(section.dtype)
            count = values.size
            target[:count] = values if values.ndim == 1 else values.reshape(-1)
            if count < section.elements and padding is not None:
                target[count:] = padding
        rows, columns = step.block_table.shape
        columns = min(columns, self.shape.blocks)
        table = self._array(self._sections.block_table, buffer)
        table[:rows, :columns] = step.block_table[:, :columns]
        if self.shape.window_groups:
            tables = self._array(self._sections.window_tables, buffer)
            tables[:, :rows, :columns] = step.window_tables[:, :, :columns]
            slots = self._array(self._sections.window_slots, buffer)
            slots[:, : step.num_tokens] = step.window_slots
            slots[:, step.num_tokens :] = PADDING_SLOT

    @staticmethod
    def _array(section: Section, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Returns an array of several dimensions."""
        part = buffer[section.offset : section.stop]
        array: npt.NDArray[Any] = part.view(section.dtype).reshape(section.shape)
        return array
