"""The cutting of work into blocks: grids and splits for a number of compute units.

Everything here depends on shapes only, never on values, so that a captured graph has the geometry
of its bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import Final

from rocmforge_hip.device.constants import (
    ATTENTION_ROWS,
    BLOCK_TOKENS,
    GATED_ROWS,
    GEMM_COLUMNS,
    LEAST_ROUNDED,
    QUANT_BLOCK,
    ROW_ALIGN,
    SPLIT_ROUND,
    WIDE_GEMM_ROWS,
)
from rocmforge_hip.device.driver import DeviceProperties
from rocmforge_hip.device.memory import ArraySpec, spec
from rocmforge_hip.weights.formats import ceil_div, round_up

MAX_GEMV_ROWS: Final = 8
"""Of activations, with each of their slices (rf/activations/act.h) counted as a row."""

MAX_INT8_ROWS: Final = 16
"""That int8 matrix instructions multiply, counted likewise."""

GEMM_ROWS: Final = (32, 64, 128)
# Blocks of each tile that a compute unit runs at once, as far as LDS and registers go.
_GEMM_BLOCKS_PER_CU: Final = {32: 2, 64: 2, 128: 2}
_SPLIT_QUANT_BLOCKS: Final = 8
# Tokens that a block of decode attention reads alone, if there are so many blocks for four compute
# units: what it does besides takes as long as some hundred tokens.
_WHOLE_TOKENS: Final = ((7, 2048), (3, 1024), (0, 256))
_ATTENTION_BLOCKS_PER_CU: Final = 4  # at most
_PREFILL_BLOCKS_PER_CU: Final = 2  # at most
_MIN_PREFILL_SPLIT: Final = 512  # tokens, so that putting splits together costs little beside
_HELD_PAIRS: Final = (12, 40)  # of an expert, from the least to the most
_SAMPLING_BLOCKS_PER_CU: Final = 2
_MIN_PART_TOKENS: Final = 1024
_MATRIX_ROWS: Final = 5  # below, GEMV was not measured to be slower
_MATRIX_THREADS_PER_CU: Final = 512
_WIDE_BLOCKS_PER_CU: Final = 4
_STREAMED_ROWS_PER_CU: Final = 192
_LEAST_STREAMED_FEATURES: Final = 4096
_ROUTE_LOGITS_PER_CU: Final = 240
ROUTE_TILE: Final = 64
"""Tokens, and experts, of a block of a router's GEMM."""
_ROUTE_BLOCKS_PER_CU: Final = 2
_MOST_ROUTE_SPLITS: Final = 4
_LEAST_ROUTE_FEATURES: Final = 64  # of a part
_LEAST_WIDE_ROWS: Final = 129  # of a GEMM
_WIDE_STEP: Final = 2  # quant blocks that they multiply at once
_LEAST_WIDE_QUANT_BLOCKS: Final = 32  # of a split, as a block's end takes as long as a dozen
MATRIX_QUANT_BLOCKS: Final = 8
"""The least quant blocks in a row that int8 matrix instructions multiply."""


@dataclass(frozen=True, slots=True)
class AttentionSplit:
    """The cutting of a decoding sequence's context."""

    tokens: int  # of a split, a multiple of BLOCK_TOKENS
    count: int


@dataclass(frozen=True, slots=True)
class GemmShape:
    """The tile of a GEMM and how its K is cut."""

    tile_rows: int
    splits: int
    split_quant_blocks: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """The rules for one device.

    `matrix_rows` is the least number of int8 rows, slices included, that matrix instructions
    multiply rather than GEMV; 0 stands for none. `least_decode_split` is that of visible tokens
    of a decode that are split; `least_prefill_split` that of a split of a prompt;
    `least_wide_blocks` that of blocks of ROW_ALIGN stored rows, of which int8 matrix instructions
    take more at once; `least_route_logits` that of a router's logits that GEMM makes;
    `least_wide_rows` that of a GEMM's rows that are taken WIDE_GEMM_ROWS at a time;
    `least_streamed_rows` that of stored rows that waves of int8 products copy ahead;
    `least_streamed_features` that of features of a row, of x and of a sum, for which GEMV copies
    weights ahead; 0 stands for what was measured to be worth it. `has_warpgroups` says whether
    GEMM has the matrix instructions of warpgroups (kernels/include/rf/mma/warpgroup.h).
    """

    compute_units: int
    matrix_rows: int = 0
    least_decode_split: int = 0
    least_prefill_split: int = 0
    least_wide_blocks: int = 0
    least_route_logits: int = 0
    least_wide_rows: int = 0
    least_streamed_rows: int = 0
    least_streamed_features: int = 0
    has_warpgroups: bool = False

    def attention(
        self,
        context: int,
        window: int | None,
        blocks: int,
        sequences: int,
        blocks_per_cu: int = _ATTENTION_BLOCKS_PER_CU,
    ) -> AttentionSplit:
        """Splits that fill the device, for sequences of at most `context` tokens.

        Blocks that nearly fill it all run at once. Where that does not come out even, there are
        several rounds of them instead, as a second round of a few would leave the device idle.
        Every split makes the merge longer, by about an eighth of what a block takes for a round of
        tokens: splits shorter than a multiple of the square root of the context cost more than they
        save, and short contexts are not split at all.

        Args:
            context: Tokens of a sequence.
            window: Tokens that are visible, if not all.
            blocks: Thread blocks of a split.
            sequences: How many there are.
            blocks_per_cu: Thread blocks that a compute unit runs at once.
        """
        visible = context if window is None else min(context, window + BLOCK_TOKENS)
        if visible < (self.least_decode_split or self._least_decode_split(blocks * sequences)):
            return AttentionSplit(round_up(visible, BLOCK_TOKENS), 1)
        per_cu = min(blocks_per_cu, _ATTENTION_BLOCKS_PER_CU)
        at_once = max(1, per_cu * self.compute_units // blocks)
        wanted = at_once // sequences
        if 4 * wanted * sequences < 3 * at_once:
            wanted = ceil_div(_several_rounds(at_once), sequences)
        multiple = SPLIT_ROUND if visible >= LEAST_ROUNDED else BLOCK_TOKENS
        tokens = round_up(max(ceil_div(visible, wanted), 2 * isqrt(visible)), multiple)
        return AttentionSplit(tokens, ceil_div(visible, tokens))

    def has_few_decodes(self, blocks: int) -> bool:
        """Returns whether each of so many blocks, which read whole contexts, has a compute unit."""
        return blocks <= self.compute_units

    def _least_decode_split(self, blocks: int) -> int:
        """Returns the least visible tokens that are split where so many blocks read a whole."""
        per_four = 4 * blocks // self.compute_units
        return 1 + next(tokens for least, tokens in _WHOLE_TOKENS if per_four >= least)

    def team_splits(
        self, context: int, blocks: int, teams: int, blocks_per_cu: int, room: int
    ) -> AttentionSplit:
        """Returns the splits of a sequence where as many teams read what they share.

        Those of the front and the rest together are one more than of the whole at most.

        Args:
            context: Tokens of a sequence.
            blocks: Thread blocks of a split.
            teams: Of the step.
            blocks_per_cu: Thread blocks that a compute unit runs at once.
            room: Splits of a sequence that there is room for, 2 or more.
        """
        split = self.attention(context, None, blocks, teams, blocks_per_cu)
        if split.count < room:
            return AttentionSplit(split.tokens, split.count + 1)
        tokens = round_up(ceil_div(context, room - 1), SPLIT_ROUND)
        return AttentionSplit(tokens, ceil_div(context, tokens) + 1)

    def prefills_at_once(self, blocks_per_cu: int) -> int:
        """Returns how many blocks of prefills run at once if a compute unit has so many."""
        return min(blocks_per_cu, _PREFILL_BLOCKS_PER_CU) * self.compute_units

    @property
    def least_prefill_keys(self) -> int:
        """The least keys of a split of a prompt."""
        return self.least_prefill_split or _MIN_PREFILL_SPLIT

    def prefill_results(self) -> int:
        """Returns how many results splits of prefills may have together: of a head of a token."""
        return _PREFILL_BLOCKS_PER_CU * self.compute_units * ATTENTION_ROWS

    def gemm(
        self, rows: int, stored_rows: int, quant_blocks: int, *, has_wide: bool = False
    ) -> GemmShape:
        """Returns the smallest tile that holds the rows; splits K while compute units are idle.

        Args:
            rows: Of activations.
            stored_rows: Of the matrix.
            quant_blocks: Of a row of the matrix.
            has_wide: Whether there is a kernel for tiles of WIDE_GEMM_ROWS. It is taken where its
                blocks go over no more of K, all their rounds together, than others do.
        """
        shape = _gemm(self.compute_units, rows, stored_rows, quant_blocks)
        least = self.least_wide_rows or _LEAST_WIDE_ROWS
        if not has_wide or quant_blocks % _WIDE_STEP or rows < least:
            return shape
        columns = ceil_div(stored_rows, GEMM_COLUMNS)
        tiles = ceil_div(rows, WIDE_GEMM_ROWS) * columns
        splits = min(self.compute_units // tiles, quant_blocks // _LEAST_WIDE_QUANT_BLOCKS)
        size = quant_blocks if splits < 2 else _split_quant_blocks(quant_blocks, splits)
        wide = GemmShape(WIDE_GEMM_ROWS, ceil_div(quant_blocks, size), size)
        rounds = ceil_div(tiles, self.compute_units)
        blocks = ceil_div(rows, shape.tile_rows) * columns * shape.splits
        at_once = _GEMM_BLOCKS_PER_CU[shape.tile_rows] * self.compute_units
        fits = rounds * shape.splits <= ceil_div(blocks, at_once) * wide.splits
        return wide if fits or self.least_wide_rows else shape

    def matrix_threads(self, stored_rows: int, block_size: int) -> int:
        """Returns the threads of a block of 16 stored rows: so many that waves fill the device.

        Where a stored block is one quant block, a step is four of them and not eight.
        """
        wanted = _MATRIX_THREADS_PER_CU * self.compute_units // (stored_rows // 16)
        least = 128 if block_size == QUANT_BLOCK else 64
        return next((threads for threads in (256, 128) if threads <= wanted), least)

    def has_wide_blocks(self, stored_rows: int) -> bool:
        """Returns whether blocks of ROW_ALIGN stored rows of int8 products fill the device."""
        least = self.least_wide_blocks or _WIDE_BLOCKS_PER_CU * self.compute_units
        return stored_rows // ROW_ALIGN >= least

    def streams(self, stored_rows: int) -> bool:
        """Returns whether a block to each compute unit is faster for int8 products of few rows."""
        least = self.least_streamed_rows or _STREAMED_ROWS_PER_CU * self.compute_units
        return self.has_warpgroups and stored_rows >= least

    def streams_row(self, features: int) -> bool:
        """Returns whether GEMV is faster for a row of so many features if it copies ahead."""
        return features >= (self.least_streamed_features or _LEAST_STREAMED_FEATURES)

    def group_tile_rows(self, pairs: int, num_experts: int, *, holds_gated: bool = False) -> int:
        """Returns the rows of a tile for pairs of tokens and experts, sorted by expert.

        With warpgroups, a tile of 64 rows costs what those that are there cost
        (kernels/include/rf/gemm/gemm_few_rows.h). With `holds_gated`, GATED_ROWS can stay in LDS
        while gate and up are multiplied, which is worth it if experts have about as many.
        """
        least, most = (limit * num_experts for limit in _HELD_PAIRS)
        if holds_gated and least <= pairs <= most:
            return GATED_ROWS
        limits = {64: 384} if self.has_warpgroups else {32: 96, 64: 384}  # pairs of an expert
        return next((tile for tile in limits if pairs <= limits[tile] * num_experts), GEMM_ROWS[-1])

    def groups_experts(self, tokens: int, pairs: int, num_experts: int, slices: int) -> bool:
        """Returns whether pairs that so many tokens and experts make are computed in groups.

        With warpgroups, half as many pairs are worth it where more rows than those of GEMV are
        halves already.
        """
        if self.has_warpgroups and tokens > MAX_GEMV_ROWS and 2 * pairs * slices >= num_experts:
            return True
        return groups_experts(pairs, num_experts, slices)

    def routes_by_gemm(self, logits: int) -> bool:
        """Returns whether so many logits of a router, of all tokens together, fill a GEMM."""
        return logits >= (self.least_route_logits or _ROUTE_LOGITS_PER_CU * self.compute_units)

    @staticmethod
    def route_tiles(num_logits: int) -> int:
        """Returns the tiles of experts of a router's GEMM; a single row left over needs none."""
        return ceil_div(max(1, num_logits - 1), ROUTE_TILE)

    def route_splits(self, tokens: int, num_logits: int, features: int) -> int:
        """Returns in how many parts of the features GEMM makes a router's logits of tokens."""
        blocks = ceil_div(tokens, ROUTE_TILE) * self.route_tiles(num_logits)
        wanted = _ROUTE_BLOCKS_PER_CU * self.compute_units // blocks
        return max(1, min(_MOST_ROUTE_SPLITS, wanted, features // _LEAST_ROUTE_FEATURES))

    def most_split_tokens(self, tokens: int, num_logits: int, features: int) -> int:
        """Returns the rows of such parts that up to `tokens` tokens may have."""
        ends = range(ROUTE_TILE, tokens + ROUTE_TILE, ROUTE_TILE)
        counts = (min(end, tokens) for end in ends)
        return max(count * self.route_splits(count, num_logits, features) for count in counts)

    def sampling_parts(self, rows: int, vocab: int) -> int:
        """Returns how many blocks share a row of logits."""
        wanted = _SAMPLING_BLOCKS_PER_CU * self.compute_units // rows
        return max(1, min(wanted, vocab // _MIN_PART_TOKENS))

    def most_sampling_parts(self, rows: int) -> int:
        """Returns how many parts all rows have together, for any number of rows up to `rows`."""
        return max(rows, _SAMPLING_BLOCKS_PER_CU * self.compute_units)

    def attention_splits(self, kv_heads: int, sequences: int) -> int:
        """Returns how many splits there may be, for any number of sequences up to this one."""
        at_once = max(1, _ATTENTION_BLOCKS_PER_CU * self.compute_units // kv_heads)
        return _several_rounds(at_once) + sequences

    def gemm_scratch(self) -> ArraySpec:
        """Returns the array for the results of splits of matrix products, of any size."""
        # Where wanted splits are rounded, there may be a third more blocks than there is room for.
        *small, largest = (tile * _GEMM_BLOCKS_PER_CU[tile] for tile in GEMM_ROWS)
        rows = max(largest, ceil_div(4 * max(small), 3), WIDE_GEMM_ROWS)
        pieces = self.compute_units * rows * GEMM_COLUMNS
        return spec((pieces,), "f4")


def whole_waves(threads: int) -> int:
    """Returns the least number of threads that is no smaller and is whole waves of either size."""
    return round_up(threads, 64)


def groups_experts(pairs: int, num_experts: int, slices: int) -> bool:
    """Returns whether pairs of tokens and experts are computed in groups.

    One after the other they are faster while few share an expert. A slice of the int8 activations
    that such kernels read (kernels/include/rf/activations/act.h) costs them as much as a pair.
    """
    return pairs * slices > num_experts


def gemv_rows(slices: int) -> int:
    """Returns how many rows of int8 activations with so many slices may go through GEMV.

    None without slices. Two cost GEMV as much as twice the rows; from three rows on GEMM is faster.
    """
    return {0: 0, 1: MAX_GEMV_ROWS, 2: 2}[slices]


def geometry_of(device: DeviceProperties) -> Geometry:
    """Returns the rules for a device.

    Int8 matrix instructions are used on the chips on which they were measured to be faster.
    """
    is_measured = device.target.startswith("sm_")
    matrix_rows = _MATRIX_ROWS if is_measured else 0
    return Geometry(device.compute_units, matrix_rows, has_warpgroups=device.target == "sm_90")


@lru_cache(maxsize=256)  # every layer of a step asks for the same few
def _gemm(compute_units: int, rows: int, stored_rows: int, quant_blocks: int) -> GemmShape:
    tile = next((tile for tile in GEMM_ROWS if rows <= tile), GEMM_ROWS[-1])
    blocks = ceil_div(rows, tile) * ceil_div(stored_rows, GEMM_COLUMNS)
    wanted = _GEMM_BLOCKS_PER_CU[tile] * compute_units / blocks
    # A few blocks too many take as long as a whole round of them, unless they are short. Tiles of
    # 64 bear that better.
    splits, more = max(1, int(wanted)), max(1, round(wanted))
    if tile == 64 or (tile == 32 and _ends_short(quant_blocks, more)):
        splits = more
    split_quant_blocks = _split_quant_blocks(quant_blocks, splits)
    return GemmShape(tile, ceil_div(quant_blocks, split_quant_blocks), split_quant_blocks)


def _split_quant_blocks(quant_blocks: int, splits: int) -> int:
    return round_up(ceil_div(quant_blocks, splits), _SPLIT_QUANT_BLOCKS)


def _ends_short(quant_blocks: int, splits: int) -> bool:
    """Returns whether a unit does two of the last splits of K while others do one of the rest."""
    size = _split_quant_blocks(quant_blocks, splits)
    last = quant_blocks - (ceil_div(quant_blocks, size) - 1) * size
    return 2 * last <= size


def _several_rounds(at_once: int) -> int:
    return ceil_div(5 * at_once, 2)
