"""The values of stored weights, as float32: the one place that borrows GGUF's dequantisation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.formats import WeightFormat

_PLAIN: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        "f64": np.dtype("<f8"),
        "f32": np.dtype("<f4"),
        "f16": np.dtype("<f2"),
        "i8": np.dtype("i1"),
        "i16": np.dtype("<i2"),
        "i32": np.dtype("<i4"),
        "i64": np.dtype("<i8"),
    }
)
"""Formats of single numbers that NumPy has."""

_CHUNK_ELEMENTS: Final = 1 << 18
"""Elements converted at a time: temporaries stay within a few MiB, whatever the tensor's size."""


def decode(
    format: WeightFormat, blocks: npt.NDArray[np.uint8], order: Literal["C", "F"] = "C"
) -> npt.NDArray[np.float32]:
    """Returns the elements of rows, in new memory.

    Temporaries beside it are small: the largest matrix of a model may be half of the model.

    Args:
        format: How they are stored.
        blocks: [..., bytes of a row], whole blocks.
        order: How a matrix lies in memory: row after row (C) or column after column (F).

    Returns:
        [..., elements of a row].

    Raises:
        NotImplementedError: Nobody here can tell the values of this format.
    """
    size, nbytes = format.block_size, format.block_bytes
    stored = blocks.reshape(-1, blocks.shape[-1])
    features = blocks.shape[-1] // nbytes * size
    values = np.empty((len(stored), features), np.float32, order)
    width = min(features, _CHUNK_ELEMENTS)
    height = _CHUNK_ELEMENTS // width
    # A broken file may hold scales that overflow: the model shows it as NaN or infinity.
    with np.errstate(over="ignore", invalid="ignore"):
        for column in range(0, features, width):
            columns = slice(column, column + width)
            part = stored[:, column // size * nbytes : (column + width) // size * nbytes]
            for row in range(0, len(stored), height):
                rows = slice(row, row + height)
                values[rows, columns] = _decode(format, part[rows])
    return values.reshape(*blocks.shape[:-1], features)


def _decode(format: WeightFormat, blocks: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    if format.name in _PLAIN:
        return blocks.view(_PLAIN[format.name])
    if format.name == "q1_0":
        bits = _one_bit(blocks.reshape(-1, format.block_bytes))
        return bits.reshape(len(blocks), -1)
    # All of the package comes with it: only who decodes shall wait for that.
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    # It takes sixteen rows at a time; in short ones, most of the time would go into calls of NumPy.
    as_one_row = dequantize(blocks.reshape(1, -1), GGMLQuantizationType[format.name.upper()])
    return as_one_row.reshape(len(blocks), -1)


def _one_bit(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Returns d where a bit is set and -d elsewhere; a block is the half d and the bits."""
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=-1, bitorder="little")
    return np.where(bits, scale, -scale).reshape(-1)
