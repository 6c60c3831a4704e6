"""Weight matrices for kernel tests: random ones of every GGUF type, and their device layout.

The layout is that of kernels/include/rf/weights.h, written here in NumPy from its description, so
that it is an oracle for rf_repack_*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

Array = npt.NDArray[Any]
Bytes = npt.NDArray[Any]  # uint8

QUANT_BLOCK = 32  # weights
GROUP_ROWS = 8
ROW_ALIGN = 32
GATE_ROWS = 16

FLOAT_TYPES = ("f32", "f16", "bf16")
BLOCK_TYPES = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4")
SUPER_BLOCK_TYPES = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs")
QUANTISED_TYPES = BLOCK_TYPES + SUPER_BLOCK_TYPES
ALL_TYPES = FLOAT_TYPES + QUANTISED_TYPES

# Where the halves of a block are that scale it: random bytes there would be huge or NaN.
_HALVES = {
    "q8_0": (0,),
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "iq4_nl": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_xs": (0,),
}


def ggml_type(name: str) -> GGMLQuantizationType:
    """The type of the gguf package that kernels call `name`."""
    return GGMLQuantizationType[name.upper()]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A [out_features, in_features] matrix as a GGUF file stores it."""

    name: str
    raw: Bytes  # [rows, bytes of a row]
    in_features: int  # columns

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return int(self.raw.shape[0])

    @property
    def quant_blocks(self) -> int:
        """Quant blocks in a row."""
        return self.in_features // QUANT_BLOCK

    def values(self) -> npt.NDArray[np.float64]:
        """The weights, by the gguf package."""
        return dequantize(self.raw, ggml_type(self.name)).astype(np.float64)

    def packed(self, stored_row: npt.NDArray[np.int64] | None = None, rows: int = 0) -> Bytes:
        """The device layout; row r goes to stored_row[r] of a matrix with at least `rows` rows."""
        target = np.arange(self.rows) if stored_row is None else stored_row
        stored = round_up(max(int(target.max()) + 1, rows), ROW_ALIGN)
        planes = []
        for plane in _planes(self.name, self.raw):
            image = np.zeros((stored, *plane.shape[1:]), np.uint8)
            image[target] = plane
            items, size = image.shape[1:]
            groups = image.reshape(stored // GROUP_ROWS, GROUP_ROWS, items, size)
            planes.append(groups.transpose(0, 2, 1, 3).ravel())
        return np.concatenate(planes)


def random_matrix(
    rng: np.random.Generator, name: str, rows: int, in_features: int, *, magnitude: float = 1.0
) -> Matrix:
    """A matrix whose weights are of the order of `magnitude`; their codes use every bit."""
    block, size = GGML_QUANT_SIZES[ggml_type(name)]
    if name in FLOAT_TYPES:
        values = (magnitude * rng.standard_normal((rows, in_features))).astype(np.float32)
        return Matrix(name, _float_bytes(name, values), in_features)
    raw = rng.integers(0, 256, (rows, in_features // block, size), dtype=np.uint8)
    for position in _HALVES.get(name, ()):
        scale = rng.uniform(0.25, 1.0, raw.shape[:2]) * _typical_scale(name) * magnitude
        scale *= rng.choice([-1.0, 1.0], raw.shape[:2])
        raw[:, :, position : position + 2] = _bytes_of(scale[:, :, None].astype(np.float16))
    if name == "mxfp4":
        raw[:, :, 0] = rng.integers(122, 128, raw.shape[:2]) + round(np.log2(magnitude))
    return Matrix(name, raw.reshape(rows, -1), in_features)


def gated_rows(rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Stored rows of the gate and of the up rows of a gated layer."""
    row = np.arange(rows)
    gate = row // GATE_ROWS * ROW_ALIGN + row % GATE_ROWS
    return gate, gate + GATE_ROWS


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is not below value."""
    return -(-value // multiple) * multiple


def _typical_scale(name: str) -> float:
    largest = {"q8_0": 128, "iq4_nl": 128, "q2_k": 45, "q3_k": 128, "q6_k": 4096, "iq4_xs": 4096}
    return 1.0 / largest.get(name, 1024 if name.endswith("_k") else 16)


def _float_bytes(name: str, values: npt.NDArray[np.float32]) -> Bytes:
    if name == "f32":
        return _bytes_of(values)
    if name == "f16":
        return _bytes_of(values.astype(np.float16))
    return _bytes_of((values.view(np.uint32) >> 16).astype(np.uint16))


def _bytes_of(values: Array) -> Bytes:
    return np.ascontiguousarray(values).view(np.uint8)


def _planes(name: str, raw: Bytes) -> Iterator[Bytes]:
    """The planes of a matrix, each [rows, items, bytes of an item]."""
    rows = raw.shape[0]
    if name in FLOAT_TYPES:
        yield raw.reshape(rows, -1, 16)
        return
    _, size = GGML_QUANT_SIZES[ggml_type(name)]
    blocks = raw.reshape(rows, -1, size)
    yield from _PLANES[name](blocks)


def _nibbles(codes: Bytes) -> Bytes:
    """[rows, blocks, weights] -> [rows, quant_blocks, 16]."""
    quant_blocks = codes.reshape(codes.shape[0], -1, 2, 16) & 15
    return quant_blocks[:, :, 0] | quant_blocks[:, :, 1] << 4


def _pairs(codes: Bytes) -> Bytes:
    """Two bits a weight: [rows, pairs of quant_blocks, 16]."""
    fields = (codes & 3).reshape(codes.shape[0], -1, 2, 4, 4)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    words: Bytes = np.bitwise_or.reduce(fields << shifts, axis=3)
    return words.reshape(codes.shape[0], -1, 16)


def _bits(codes: Bytes, item: int) -> Bytes:
    """One bit a weight: [rows, items, item bytes]."""
    fields = (codes & 1).reshape(codes.shape[0], -1, 8, 4)
    words: Bytes = np.bitwise_or.reduce(fields << np.arange(8, dtype=np.uint8)[:, None], axis=2)
    return words.reshape(codes.shape[0], -1, item)


def _split_nibbles(qs: Bytes, run: int) -> Bytes:
    """Codes of qs: `run` low nibbles, then the high nibbles of the same bytes, and so on."""
    groups = qs.reshape(*qs.shape[:2], -1, 1, run)
    return (groups >> np.array([[0], [4]], np.uint8) & 15).reshape(*qs.shape[:2], -1)


def _split_pairs(qs: Bytes) -> Bytes:
    """Codes of qs: bits 0 and 1 of 32 bytes, then bits 2 and 3 of the same bytes, and so on."""
    groups = qs.reshape(*qs.shape[:2], -1, 1, 32)
    return (groups >> np.array([[0], [2], [4], [6]], np.uint8) & 3).reshape(*qs.shape[:2], -1)


def _split_bits(mask: Bytes) -> Bytes:
    """Bit 0 of 32 bytes, then bit 1 of the same bytes, and so on."""
    bits = mask[:, :, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return bits.reshape(*mask.shape[:2], -1)


def _q8_0(b: Bytes) -> Iterator[Bytes]:
    yield b[:, :, 2:].reshape(b.shape[0], -1, 16)
    yield b[:, :, :2]


def _nibble_block(header: int) -> Callable[[Bytes], Iterator[Bytes]]:
    def planes(b: Bytes) -> Iterator[Bytes]:
        yield b[:, :, header:]  # its nibbles are in the layout's order
        yield b[:, :, :header]

    return planes


def _five_bit_block(header: int) -> Callable[[Bytes], Iterator[Bytes]]:
    def planes(b: Bytes) -> Iterator[Bytes]:
        yield b[:, :, header + 4 :]
        yield _bits(np.unpackbits(b[:, :, header : header + 4], axis=-1, bitorder="little"), 4)
        yield b[:, :, :header]

    return planes


def _q2_k(b: Bytes) -> Iterator[Bytes]:
    yield _pairs(_split_pairs(b[:, :, 16:80]))
    yield b[:, :, :16].reshape(b.shape[0], -1, 4)
    yield b[:, :, 80:]


def _q3_k(b: Bytes) -> Iterator[Bytes]:
    yield _pairs(_split_pairs(b[:, :, 32:96]))
    yield _bits(_split_bits(b[:, :, :32]), 8)
    yield b[:, :, 96:108]
    yield b[:, :, 108:]


def _q4_k(b: Bytes) -> Iterator[Bytes]:
    yield _nibbles(_split_nibbles(b[:, :, 16:], 32))
    yield b[:, :, :16]


def _q5_k(b: Bytes) -> Iterator[Bytes]:
    yield _nibbles(_split_nibbles(b[:, :, 48:], 32))
    yield _bits(_split_bits(b[:, :, 16:48]), 8)
    yield b[:, :, :16]


def _q6_k(b: Bytes) -> Iterator[Bytes]:
    yield _nibbles(_split_nibbles(b[:, :, :128], 64))
    yield _pairs(_split_pairs(b[:, :, 128:192]))
    yield b[:, :, 192:208].reshape(b.shape[0], -1, 4)
    yield b[:, :, 208:]


def _iq4_xs(b: Bytes) -> Iterator[Bytes]:
    yield b[:, :, 8:].reshape(b.shape[0], -1, 16)
    yield b[:, :, :8]


_PLANES: dict[str, Callable[[Bytes], Iterator[Bytes]]] = {
    "q8_0": _q8_0,
    "q4_0": _nibble_block(2),
    "q4_1": _nibble_block(4),
    "q5_0": _five_bit_block(2),
    "q5_1": _five_bit_block(4),
    "iq4_nl": _nibble_block(2),
    "mxfp4": _nibble_block(1),
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_xs": _iq4_xs,
}
