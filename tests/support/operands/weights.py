"""Weight matrices for kernel tests: random ones of every GGUF type, and their device layout.

The layout is that of rf/weights/weights.h, written here in NumPy from its description, so
that it is an oracle for rf_repack_*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from rocmforge.checkpoint.decode import decode
from rocmforge.checkpoint.formats import FORMATS
from rocmforge.checkpoint.random_rows import random_rows

Bytes = npt.NDArray[Any]  # uint8

QUANT_BLOCK = 32  # weights
GROUP_ROWS = 8
ROW_ALIGN = 32
GATE_ROWS = 16

ALL_TYPES = tuple(name for name, format in FORMATS.items() if format.has_kernels)
FLOAT_TYPES = tuple(name for name in ALL_TYPES if not FORMATS[name].is_quantised)
QUANTISED_TYPES = tuple(name for name in ALL_TYPES if FORMATS[name].is_quantised)


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
        """The weights, as the product decodes them: its tests compare with the gguf package."""
        return decode(FORMATS[self.name], self.raw).astype(np.float64)

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
    raw = random_rows(rng, FORMATS[name], rows, in_features, magnitude)
    return Matrix(name, raw, in_features)


def block_features(name: str) -> int:
    """The fewest in_features that a matrix of this type can have."""
    return max(QUANT_BLOCK, FORMATS[name].block_size)


def gated_rows(rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Stored rows of the gate and of the up rows of a gated layer."""
    row = np.arange(rows)
    gate = row // GATE_ROWS * ROW_ALIGN + row % GATE_ROWS
    return gate, gate + GATE_ROWS


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is not below value."""
    return -(-value // multiple) * multiple


def _planes(name: str, raw: Bytes) -> Iterator[Bytes]:
    """The planes of a matrix, each [rows, items, bytes of an item]."""
    rows = raw.shape[0]
    if name in FLOAT_TYPES:
        yield raw.reshape(rows, -1, 16)
        return
    blocks = raw.reshape(rows, -1, FORMATS[name].block_bytes)
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


def _q1_0(b: Bytes) -> Iterator[Bytes]:
    yield _bits(np.unpackbits(b[:, :, 2:], axis=-1, bitorder="little"), 8)
    yield b[:, :, :2]


def _sign_bits(signs: Bytes, others: Bytes | None = None) -> Bytes:
    """The plane of signs: [rows, pairs of quant blocks, 8].

    `signs` are [rows, blocks, weights]. `others` are [rows, blocks, weights / 8] bits that stand
    where the last of each eight signs would.
    """
    bits = signs.reshape(*signs.shape[:2], -1, 8).copy()
    if others is not None:
        bits[..., 7] = others
    return _bits(bits.reshape(signs.shape[0], -1), 8)


def _sevens(words: npt.NDArray[np.uint32]) -> tuple[Bytes, Bytes]:
    """Four times seven signs of each word, with room for the eighth; the four bits above them."""
    bits = (words[..., None] >> np.arange(32, dtype=np.uint32) & 1).astype(np.uint8)
    signs = np.zeros((*words.shape, 4, 8), np.uint8)
    signs[..., :7] = bits[..., :28].reshape(*words.shape, 4, 7)
    return signs.reshape(*words.shape[:2], -1), bits[..., 28:].reshape(*words.shape[:2], -1)


def _words(blocks: Bytes, dtype: str) -> Any:
    return np.ascontiguousarray(blocks).view(dtype)


def _pairs_of(index: Bytes, signs: Bytes) -> Bytes:
    """Indices and signs of a quant block after each other: [rows, pairs of quant blocks, 16]."""
    rows = index.shape[0]
    both = np.concatenate((index.reshape(rows, -1, 2, 4), signs.reshape(rows, -1, 2, 4)), axis=-1)
    return both.reshape(rows, -1, 16)


def _iq2_xxs(b: Bytes) -> Iterator[Bytes]:
    words = _words(b[:, :, 2:], "<u4")
    signs, scales = _sevens(words[:, :, 1::2])
    index = _words(words[:, :, ::2], "u1")
    yield _pairs_of(index, _sign_bits(signs, scales))
    yield b[:, :, :2]


def _iq2_xs(b: Bytes) -> Iterator[Bytes]:
    codes = _words(b[:, :, 2:66], "<u2")
    seven = (codes[..., None] >> np.arange(9, 16, dtype=np.uint16) & 1).astype(np.uint8)
    signs = np.pad(seven, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(*b.shape[:2], -1)
    high = (codes >> 8 & 1).astype(np.uint8)
    yield _pairs_of((codes & 255).astype(np.uint8), _sign_bits(signs, high))
    yield b[:, :, 66:].reshape(b.shape[0], -1, 2)
    yield b[:, :, :2]


def _iq2_s(b: Bytes) -> Iterator[Bytes]:
    rows = b.shape[0]
    signs = np.unpackbits(b[:, :, 34:66], axis=-1, bitorder="little")
    yield _pairs_of(b[:, :, 2:34], _sign_bits(signs))
    more = (b[:, :, 66:74].reshape(rows, -1, 2), b[:, :, 74:82].reshape(rows, -1, 2))
    yield np.concatenate(more, axis=-1)
    yield b[:, :, :2]


def _iq3_xxs(b: Bytes) -> Iterator[Bytes]:
    signs, scales = _sevens(_words(b[:, :, 66:], "<u4"))
    yield b[:, :, 2:66].reshape(b.shape[0], -1, 16)
    yield _sign_bits(signs, scales)
    yield b[:, :, :2]


def _iq3_s(b: Bytes) -> Iterator[Bytes]:
    rows = b.shape[0]
    yield b[:, :, 2:66].reshape(rows, -1, 16)
    yield _sign_bits(np.unpackbits(b[:, :, 74:106], axis=-1, bitorder="little"))
    yield b[:, :, 66:74].reshape(rows, -1, 2)
    yield np.concatenate((b[:, :, :2], b[:, :, 106:110]), axis=-1)


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
    "iq3_s": _iq3_s,
    "iq3_xxs": _iq3_xxs,
    "iq2_s": _iq2_s,
    "iq2_xs": _iq2_xs,
    "iq2_xxs": _iq2_xxs,
    "q1_0": _q1_0,
}
