"""One tensor of an open GGUF file: a view into the map, and its conversion to float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from rocmforge.errors import UnsupportedTensor

_PLAIN_DTYPES: Final[dict[GGMLQuantizationType, np.dtype[Any]]] = {
    GGMLQuantizationType.F32: np.dtype("<f4"),
    GGMLQuantizationType.F16: np.dtype("<f2"),
    GGMLQuantizationType.F64: np.dtype("<f8"),
    GGMLQuantizationType.I8: np.dtype("i1"),
    GGMLQuantizationType.I16: np.dtype("<i2"),
    GGMLQuantizationType.I32: np.dtype("<i4"),
    GGMLQuantizationType.I64: np.dtype("<i8"),
}
"""Types whose blocks are single numbers that NumPy has."""

_CHUNK_ELEMENTS: Final = 1 << 18
"""Elements converted at a time: temporaries stay within a few MiB, whatever the tensor's size."""


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """A tensor as the file stores it.

    Attributes:
        name: The name in the file; rows or columns taken from a tensor append their range.
        shape: Elements along each axis in NumPy order, the last axis contiguous.
        type: How the elements are stored; block and byte sizes are in `GGML_QUANT_SIZES`.
        data: uint8 `[*shape[:-1], bytes per row]`, read-only. It keeps the file mapped.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes of the stored data."""
        return self.data.nbytes

    def rows(self, start: int, stop: int) -> GgufTensor:
        """Returns rows `start:stop` of a 2-D tensor, sharing its memory.

        Raises:
            UnsupportedTensor: The tensor is not 2-D or does not have these rows.
        """
        if len(self.shape) != 2 or not 0 <= start < stop <= self.shape[0]:
            raise UnsupportedTensor(
                self.name, f"rows {start}:{stop} were asked for, but its shape is {self.shape}"
            )
        return GgufTensor(
            name=f"{self.name}[{start}:{stop}]",
            shape=(stop - start, self.shape[1]),
            type=self.type,
            data=self.data[start:stop],
        )

    def columns(self, start: int, stop: int) -> GgufTensor:
        """Returns elements `start:stop` of the last axis, sharing memory: rows are not adjacent.

        Raises:
            UnsupportedTensor: The tensor does not have them, or they are not whole blocks.
        """
        block_size, block_bytes = GGML_QUANT_SIZES[self.type]
        if not 0 <= start < stop <= self.shape[-1] or start % block_size or stop % block_size:
            raise UnsupportedTensor(
                self.name,
                f"elements {start}:{stop} of each row were asked for, but its shape is "
                f"{self.shape} in blocks of {block_size}",
            )
        first, last = (place // block_size * block_bytes for place in (start, stop))
        return GgufTensor(
            name=f"{self.name}[..., {start}:{stop}]",
            shape=(*self.shape[:-1], stop - start),
            type=self.type,
            data=self.data[..., first:last],
        )

    def to_float32(self, order: Literal["C", "F"] = "C") -> npt.NDArray[np.float32]:
        """Returns the elements as float32 `[*shape]`, in new memory.

        Temporaries beside it are small: the largest matrix of a model may be half of the model.

        Args:
            order: How a matrix lies in memory: row after row (C) or column after column (F).

        Raises:
            UnsupportedTensor: The `gguf` package cannot dequantise this type.
        """
        block_size, block_bytes = GGML_QUANT_SIZES[self.type]
        stored = self.data.reshape(-1, self.data.shape[-1])
        values = np.empty((len(stored), self.shape[-1]), np.float32, order)
        width = min(self.shape[-1], _CHUNK_ELEMENTS)
        height = _CHUNK_ELEMENTS // width
        # A broken file may hold scales that overflow: the model shows it as NaN or infinity.
        with np.errstate(over="ignore", invalid="ignore"):
            for column in range(0, self.shape[-1], width):
                columns = slice(column, column + width)
                first, last = column // block_size, (column + width) // block_size
                blocks = stored[:, first * block_bytes : last * block_bytes]
                for row in range(0, len(stored), height):
                    rows = slice(row, row + height)
                    values[rows, columns] = self._dequantize(blocks[rows])
        return values.reshape(self.shape)

    def _dequantize(self, blocks: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        if self.type in _PLAIN_DTYPES:
            return blocks.view(_PLAIN_DTYPES[self.type])
        try:
            return dequantize(blocks, self.type)
        except NotImplementedError:
            raise UnsupportedTensor(
                self.name, f"the type {self.type.name} cannot be dequantised"
            ) from None
