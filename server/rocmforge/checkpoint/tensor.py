"""A tensor of an opened checkpoint: stored bytes, what they mean, and parts of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.decode import decode
from rocmforge.checkpoint.formats import WeightFormat
from rocmforge.errors import UnsupportedTensor


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor as its file stores it.

    Attributes:
        name: The name in the file, for messages; parts of a tensor append their range.
        shape: Elements along each axis in NumPy order, the last axis contiguous.
        format: How the elements of each row are stored.
        data: uint8 `[*shape[:-1], bytes per row]`, read-only. It keeps the file mapped.
    """

    name: str
    shape: tuple[int, ...]
    format: WeightFormat
    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes of the stored data."""
        return self.data.nbytes

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis, sharing memory: its rows may not be adjacent.

        Args:
            axis: From 0, or from -1 backwards.
            start: The first index.
            stop: The one behind the last.

        Raises:
            UnsupportedTensor: The tensor does not have them, or cuts through a block of the last
                axis.
        """
        axes = len(self.shape)
        if not -axes <= axis < axes:
            raise UnsupportedTensor(self.name, f"its shape {self.shape} has no axis {axis}")
        axis %= axes
        is_last = axis == axes - 1
        block = self.format.block_size if is_last else 1
        if not 0 <= start < stop <= self.shape[axis] or start % block or stop % block:
            reason = f"{start}:{stop} of axis {axis} were asked for, but its shape is {self.shape}"
            raise UnsupportedTensor(
                self.name, reason if block == 1 else f"{reason} in blocks of {block}"
            )
        span = slice(start, stop)
        if is_last:
            span = slice(*(place // block * self.format.block_bytes for place in (start, stop)))
        before = "" if axis == 0 else "..., " if is_last else ":, " * axis
        return Tensor(
            name=f"{self.name}[{before}{start}:{stop}]",
            shape=(*self.shape[:axis], stop - start, *self.shape[axis + 1 :]),
            format=self.format,
            data=self.data[(slice(None),) * axis + (span,)],
        )

    def to_float32(self, order: Literal["C", "F"] = "C") -> npt.NDArray[np.float32]:
        """Returns the elements as float32 `[*shape]`, in new memory and little beside it.

        Args:
            order: How a matrix lies in memory: row after row (C) or column after column (F).

        Raises:
            UnsupportedTensor: Nobody here can tell the values of this format.
        """
        try:
            return decode(self.format, self.data, order)
        except NotImplementedError:
            raise UnsupportedTensor(
                self.name, f"the type {self.format.name.upper()} cannot be dequantised"
            ) from None
