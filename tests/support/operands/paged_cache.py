"""A paged KV cache with a batch of sequences in it, for the attention kernels' tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rocmforge_hip.device.heads import CACHED_HEADS, HeadSize
from rocmforge_reference import ops

BLOCK_TOKENS = 32

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class AttentionCase:
    """Sequences as (context, new tokens at its end), and how they attend."""

    sequences: tuple[tuple[int, int], ...]
    head_dim: int = 64  # of queries and keys, and of values unless those are given
    kv_heads: int = 1
    group: int = 4
    window: int | None = None
    softcap: float | None = None
    value_dim: int | None = None
    sinks: tuple[float, ...] | None = None  # of each head
    # Of each sequence, positions of rows that see each other both ways; None: there are none.
    images: tuple[range, ...] | None = None

    @property
    def head(self) -> HeadSize:
        """The elements of a head."""
        size = HeadSize(self.head_dim, self.value_dim or self.head_dim)
        return next((known for known in CACHED_HEADS if str(known) == str(size)), size)

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.group

    @property
    def scale(self) -> float:
        """Of query times key. Sharper than usual, so that a wrong key shows in the result."""
        return 2.0 / math.sqrt(self.head_dim)


def turned(values: Array) -> npt.NDArray[np.float64]:
    """Multiplies each 32 of the last axis with a Hadamard matrix, made as Sylvester did."""
    matrix = np.ones((1, 1))
    while len(matrix) < 32:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    parts = values.reshape(*values.shape[:-1], -1, 32) @ matrix / np.sqrt(32)
    result: npt.NDArray[np.float64] = parts.reshape(values.shape)
    return result


_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # of eight elements, among the nibbles of a word


def pack(codes: Array) -> npt.NDArray[np.uint32]:
    """Returns words of eight codes from -8 to 7 each."""
    nibbles = (codes + 8).astype(np.uint32).reshape(*codes.shape[:-1], -1, 8)
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(nibbles << 4 * _PLACES.astype("u4"), -1)
    return words


def unpack(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Returns what `pack` took."""
    nibbles = words[..., None] >> 4 * _PLACES.astype("u4") & 15
    codes: npt.NDArray[np.int64] = nibbles.astype(np.int64).reshape(*words.shape[:-1], -1) - 8
    return codes


class PagedBatch:
    """Random queries, and keys and values in blocks that lie in random order.

    Slots of the cache that hold no token are NaN: any use of them shows in the result. The
    cache is float16, or int8 with one scale for each token and head. With `packed`, values have
    four bits.
    """

    def __init__(
        self, case: AttentionCase, int8: bool, seed: int = 5, *, packed: bool = False
    ) -> None:
        random = np.random.default_rng(seed)
        lengths = [new for _, new in case.sequences]
        contexts = [context for context, _ in case.sequences]
        blocks = [-(-context // BLOCK_TOKENS) for context in contexts]
        self.case = case
        self.int8 = int8 or packed
        self.packed = packed
        self.kind = "k8v4" if packed else "int8" if int8 else "f16"
        self.query_start = np.cumsum([0, *lengths], dtype=np.int32)
        self.context_len = np.array(contexts, np.int32)
        self.positions = np.concatenate(
            [np.arange(c - new, c, dtype=np.int32) for c, new in case.sequences]
        )
        self.seen_ends: npt.NDArray[np.int32] | None = None
        if case.images is not None:
            self.seen_ends = self.positions + np.int32(1)
            for start, (context, new), image in zip(
                self.query_start.tolist(), case.sequences, case.images, strict=False
            ):
                first = start + max(image.start - (context - new), 0)
                self.seen_ends[first : start + image.stop - (context - new)] = image.stop
        order = iter(random.permutation(sum(blocks) + 1))
        self.block_table = np.zeros((len(blocks), max(blocks) + 1), np.int32)
        for row, count in zip(self.block_table, blocks, strict=True):
            row[:count] = [next(order) for _ in range(count)]
        self.sinks = None if case.sinks is None else np.array(case.sinks, np.float32)
        self.q = random.standard_normal((sum(lengths), case.heads, case.head_dim)).astype(
            np.float16
        )
        rows = (sum(blocks) + 1, case.kv_heads, BLOCK_TOKENS)
        used = self._used_slots(rows[0])
        self.k, self.k_scale = self._fill(random, (*rows, case.head.key_dim), used)
        self.v, self.v_scale = self._fill(random, (*rows, case.head.value_dim), used)
        if packed:
            self.v = self.v % 15 - 7  # from -7 to 7, where int8 has up to 127
            self.v_scale = None if self.v_scale is None else self.v_scale * 16
        if case.head.values_in_keys:
            self.v, self.v_scale = self.k[..., -case.head.value_dim :], self.k_scale

    def _used_slots(self, num_blocks: int) -> npt.NDArray[np.bool_]:
        used = np.zeros((num_blocks, BLOCK_TOKENS), np.bool_)
        for row, context in zip(self.block_table, self.context_len, strict=True):
            token = np.arange(context)
            used[row[token // BLOCK_TOKENS], token % BLOCK_TOKENS] = True
        return used

    def _fill(
        self, random: np.random.Generator, shape: tuple[int, ...], used: npt.NDArray[np.bool_]
    ) -> tuple[Array, npt.NDArray[np.float32] | None]:
        unused = np.broadcast_to(~used[:, None, :], shape[:3])
        if self.int8:
            scale = random.uniform(0.005, 0.02, shape[:3]).astype(np.float32)
            scale[unused] = np.nan
            return random.integers(-127, 128, shape, np.int8), scale
        values = random.standard_normal(shape).astype(np.float16)
        values[unused] = np.nan
        return values, None

    def expected(self) -> npt.NDArray[np.float64]:
        """[T, heads, value_dim], from the reference in float64."""
        k, v = self.k.astype(np.float64), self.v.astype(np.float64)
        if self.k_scale is not None and self.v_scale is not None:
            k, v = k * self.k_scale[..., None], v * self.v_scale[..., None]
        if self.packed:
            v = turned(v)
        result: npt.NDArray[np.float64] = ops.paged_attention(
            self.q.astype(np.float64),
            k,
            v,
            positions=self.positions,
            query_start=self.query_start,
            context_len=self.context_len,
            block_table=self.block_table,
            scale=self.case.scale,
            softcap=self.case.softcap,
            window=self.case.window,
            sinks=self.sinks,
            seen_ends=self.seen_ends,
        )
        return result

    @property
    def result_shape(self) -> tuple[int, int, int]:
        """[T, heads, value_dim]."""
        return len(self.q), self.case.heads, self.case.head.value_dim

    @property
    def cache(self) -> list[Array]:
        """The kernels' cache arguments: K, V and, of an int8 cache, their scales."""
        v = self.k if self.case.head.values_in_keys else self.v
        if self.packed:
            v = pack(v)
        return [x for x in (self.k, v, self.k_scale, self.v_scale) if x is not None]

    def sequences_with(self, new_tokens: Sequence[int]) -> npt.NDArray[np.int32]:
        """Indices of the sequences whose number of new tokens is one of these."""
        lengths = np.diff(self.query_start)
        return np.flatnonzero(np.isin(lengths, new_tokens)).astype(np.int32)
