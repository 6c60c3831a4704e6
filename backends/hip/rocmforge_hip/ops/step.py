"""The inputs of a step on the device: arrays at known places in one pinned buffer.

They travel in one copy. The place of each array follows from the `StepShape` alone, so a captured
graph finds it there again. `step_output` has the way back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import MAX_KEPT_STATES, NO_SLOT, SamplingBatch, StepInput
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import ArraySpec, DeviceArray, spec
from rocmforge_hip.device.records import leaves, mapped
from rocmforge_hip.ops.processor_arrays import (
    NO_USES,
    Content,
    ProcessorArrays,
    UseSizes,
    processor_contents,
)
from rocmforge_hip.weights.adapters import tile_rows
from rocmforge_hip.weights.formats import round_up

_ALIGN: Final = 16
PADDING_SLOT: Final = -1
"""Slot of a token that only fills up a batch: nothing is stored for it."""
HOST_KNOWS: Final = -1

X = TypeVar("X")


class PredictorUse(Enum):
    """The work of a predictor in a step."""

    NONE = auto()  # there is none
    FILL = auto()  # its cache is filled
    DRAFT = auto()  # it computes the step in place of the model


class StateLaunch(NamedTuple):
    """Sequences of a step that layers with states take in one launch."""

    sequences: int
    longest: int  # new tokens of the longest


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Sizes of a step's arrays; those of a graph are larger than most of the steps it serves."""

    tokens: int
    sequences: int
    rows: int
    blocks: int  # of the longest sequence
    decodes: int  # sequences with one new token
    prefills: int  # sequences with several
    longest_prefill: int  # new tokens of the longest of those
    # Of a model with states, in their order; the sequences are numbered by `in_turn`.
    state_launches: tuple[StateLaunch, ...] = ()
    # Where each token of a step that checks drafts is a sequence of its own (`run/checked_drafts`),
    # the sequences as layers with states take them, and new tokens of the longest.
    checked: int = 0
    longest_checked: int = 0
    lora_tiles: int = 0  # of rows with one adapter: see `adapters.tile_rows`
    sums: int = 0  # ranges of hidden states
    window_groups: int = 0  # of layers, with block tables of their own
    has_axes: bool = False  # positions have several, and `rope_rows` says what tokens rotate by
    has_places: bool = False  # of patches, between those of a table
    tile_windows: int = 0  # in which patches see each other
    longest_window: int = 0  # patches of the largest
    both_ways: bool = False  # some tokens see others behind them
    has_teams: bool = False  # decodes share the blocks at their fronts (`run/teams.py`)
    predictor: PredictorUse = PredictorUse.NONE


@dataclass(frozen=True, slots=True)
class SamplingNeeds:
    """The sampling kernels that a step needs."""

    adjusts: bool  # a row has a penalty, a bias, a mask or a processor: what is drawn is a copy
    masks: bool  # a row has a mask
    draws: bool  # a row has a temperature
    filters: bool  # a drawing row has min-p, top-k or top-p
    logprobs: bool
    num_top: int
    processes: bool  # a row has logits processors

    @classmethod
    def of(cls, batch: SamplingBatch) -> SamplingNeeds:
        """Returns what these rows need."""
        draws = batch.temperature > 0
        filters = draws & ((batch.min_p > 0) | (batch.top_k > 0) | (batch.top_p < 1))
        masks = batch.allowed is not None
        processes = batch.processors is not None
        adjusts = (
            masks
            or processes
            or len(batch.bias_tokens) > 0
            or bool((batch.repetition_penalty != 1).any())
            or bool((batch.presence_penalty != 0).any())
            or bool((batch.frequency_penalty != 0).any())
        )
        most = int(batch.num_logprobs.max(initial=-1))
        return cls(
            adjusts=adjusts,
            masks=masks,
            draws=bool(draws.any()),
            filters=bool(filters.any()),
            logprobs=most >= 0,
            num_top=max(most, 0),
            processes=processes,
        )


@dataclass(frozen=True, slots=True)
class ListSizes:
    """Sizes of the sampling arrays that do not follow from a step's shape."""

    seen: int  # tokens seen, of all rows with a penalty
    biases: int  # biased tokens, of all rows
    mask_words: int  # of each row; 0 if no row has a mask
    uses: UseSizes = NO_USES  # of logits processors

    @classmethod
    def of(cls, batch: SamplingBatch) -> ListSizes:
        """Returns the sizes for these rows."""
        words = 0 if batch.allowed is None else batch.allowed.shape[1]
        uses = UseSizes.of(batch.processors)
        return cls(len(batch.seen_tokens), len(batch.bias_tokens), words, uses)


NO_LISTS: Final = ListSizes(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Section:
    """The place of one array in the input buffer."""

    offset: int  # bytes
    stop: int  # byte behind it
    shape: tuple[int, ...]
    count: int  # elements
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArrays(Generic[X]):
    """The arrays of a step's inputs, in the order in which they lie in the buffer.

    T tokens, S sequences with up to M blocks of the cache, L rows of logits. `X` is what is known
    of each array: its `ArraySpec`, its `Section` of the buffer, its `Content`, or its place on the
    device.
    """

    token_ids: X  # int32 [T]
    token_source: X  # int32 [T], HOST_KNOWS or a row of the step before
    positions: X  # int32 [T]
    rope_rows: X  # int32 [T], of the table of rotations; empty if they are the positions
    slots: X  # int64 [T], where keys and values go, or PADDING_SLOT
    slots_before: X  # int64 [T], those of the tokens before; PADDING_SLOT if there is none
    query_start: X  # int32 [S + 1]
    context_len: X  # int32 [S]
    decodes: X  # int32 [S], the sequences with one new token
    teams: X  # int32 [decodes, 4], `Teams.rows`; or empty
    prefills: X  # int32 [S], the sequences with several
    in_turn: X  # int32 [S], as `in_turn` orders them; or empty
    seen_ends: X  # int32 [T], as `StepInput.seen_ends`; or empty
    state_reads: X  # int32 [S], NO_SLOT of padding, and in models without states
    state_writes: X  # int32 [T], the same
    checked_start: X  # int32 [checked + 1], as query_start, of `StepShape.checked`; or empty
    checked_context: X  # int32 [checked], as context_len
    logit_rows: X  # int32 [L]
    temperature: X  # float32 [L]
    log_min_p: X  # float32 [L]
    top_k: X  # int32 [L]
    top_p: X  # float32 [L]
    repetition: X  # float32 [L]
    presence: X  # float32 [L]
    frequency: X  # float32 [L]
    seed: X  # uint64 [L]
    draw_position: X  # int32 [L]
    num_logprobs: X  # int32 [L]
    target: X  # int32 [L]
    row_source: X  # int32 [L], token_source of the row's token
    block_table: X  # int32 [S, M]
    window_tables: X  # int32 [G, S, M]; G groups of layers, none where there is one table
    window_slots: X  # int64 [G, T]
    hidden_ranges: X  # int32 [sums, 2]
    place_ids: X  # int32 [T, 4], as `StepInput.place_ids`, or empty
    place_shares: X  # float32 [T, 4]
    tile_windows: X  # int32 [tile_windows + 1], as `StepInput.tile_windows`, or empty
    lora_tiles: X  # int32 [lora_tiles, 3]
    lora_order: X  # int32 [T]; empty if no sequence has an adapter
    # The sizes of the others are not part of the shape: rows with lists are not sampled in a graph.
    seen_offsets: X  # int32 [L + 1]
    bias_offsets: X  # int32 [L + 1]
    seen_tokens: X  # int32 [seen]
    seen_counts: X  # int32 [seen]
    bias_tokens: X  # int32 [biases]
    bias_values: X  # float32 [biases]
    processors: ProcessorArrays[X] | None
    allowed: X  # uint32 [L, mask_words]; the last, as masks may come later


def _specs(shape: StepShape, lists: ListSizes) -> StepArrays[ArraySpec]:
    tokens, sequences, rows = shape.tokens, shape.sequences, shape.rows
    a_token, a_sequence = spec((tokens,), "i4"), spec((sequences,), "i4")
    floats, ints, offsets = spec((rows,), "f4"), spec((rows,), "i4"), spec((rows + 1,), "i4")
    return StepArrays(
        token_ids=a_token,
        token_source=a_token,
        positions=a_token,
        rope_rows=spec((tokens if shape.has_axes else 0,), "i4"),
        slots=spec((tokens,), "i8"),
        slots_before=spec((tokens if shape.predictor is not PredictorUse.NONE else 0,), "i8"),
        query_start=spec((sequences + 1,), "i4"),
        context_len=a_sequence,
        decodes=a_sequence,
        teams=spec((shape.decodes if shape.has_teams else 0, 4), "i4"),
        prefills=a_sequence,
        in_turn=spec((sequences if shape.state_launches else 0,), "i4"),
        seen_ends=spec((tokens if shape.both_ways else 0,), "i4"),
        state_reads=a_sequence,
        state_writes=a_token,
        checked_start=spec((shape.checked + 1 if shape.checked else 0,), "i4"),
        checked_context=spec((shape.checked,), "i4"),
        logit_rows=ints,
        temperature=floats,
        log_min_p=floats,
        top_k=ints,
        top_p=floats,
        repetition=floats,
        presence=floats,
        frequency=floats,
        seed=spec((rows,), "u8"),
        draw_position=ints,
        num_logprobs=ints,
        target=ints,
        row_source=ints,
        block_table=spec((sequences, shape.blocks), "i4"),
        window_tables=spec((shape.window_groups, sequences, shape.blocks), "i4"),
        window_slots=spec((shape.window_groups, tokens), "i8"),
        hidden_ranges=spec((shape.sums, 2), "i4"),
        place_ids=spec((tokens if shape.has_places else 0, 4), "i4"),
        place_shares=spec((tokens if shape.has_places else 0, 4), "f4"),
        tile_windows=spec((shape.tile_windows + 1 if shape.tile_windows else 0,), "i4"),
        lora_tiles=spec((shape.lora_tiles, 3), "i4"),
        lora_order=spec((tokens if shape.lora_tiles else 0,), "i4"),
        seen_offsets=offsets,
        bias_offsets=offsets,
        seen_tokens=spec((lists.seen,), "i4"),
        seen_counts=spec((lists.seen,), "i4"),
        bias_tokens=spec((lists.biases,), "i4"),
        bias_values=spec((lists.biases,), "f4"),
        processors=lists.uses.specs(rows),
        allowed=spec((rows, lists.mask_words), "u4"),
    )


class StepLayout:
    """The places of a step's arrays in its buffer, for steps of one shape."""

    def __init__(self, shape: StepShape, lists: ListSizes = NO_LISTS) -> None:
        self.shape = shape
        self._end = 0
        self._sections: StepArrays[Section] = mapped(_specs(shape, lists), ArraySpec, self._place)
        self._in_order = leaves(self._sections, Section)

    @property
    def nbytes(self) -> int:
        """Bytes to copy."""
        return self._end

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
        contents = leaves(_contents(step, whole or step, self.shape, rope_rows, teams), tuple)
        for section, (values, padding) in zip(self._in_order, contents, strict=True):
            if not section.count:
                continue
            target = buffer[section.offset : section.stop].view(section.dtype)
            count = values.size
            target[:count] = values if values.ndim == 1 else values.reshape(-1)
            if count < section.count and padding is not None:
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


def _contents(
    step: StepInput,
    whole: StepInput,
    shape: StepShape,
    rope_rows: Int32Array | None,
    teams: Int32Array | None,
) -> StepArrays[Content]:
    """Returns the values and the padding of every array but those of several dimensions."""
    new_tokens = np.diff(step.query_start)
    batch, nothing = step.sampling, np.zeros(0, np.int32)
    # The padding of a graph is decodes, whose sequences stand behind those of the step.
    decodes = np.flatnonzero(new_tokens == 1)
    padding = step.num_sequences + np.arange(shape.decodes - len(decodes), dtype=np.int32)
    of_states = in_turn(step)[0] if shape.state_launches else nothing
    of_states = np.concatenate((of_states[: len(decodes)], padding, of_states[len(decodes) :]))
    tiles, order = tile_rows(step.token_adapters) if shape.lora_tiles else (nothing, nothing)
    with np.errstate(divide="ignore"):
        log_min_p = np.log(batch.min_p)
    return StepArrays(
        token_ids=(step.token_ids, 0),
        token_source=(step.token_source, HOST_KNOWS),
        positions=(step.positions, 0),
        rope_rows=(step.positions if rope_rows is None else rope_rows, 0),
        slots=(step.slot_mapping, PADDING_SLOT),
        slots_before=(_slots_before(step, shape), PADDING_SLOT),
        query_start=(step.query_start, int(step.query_start[-1])),
        context_len=(step.context_len, 0),
        decodes=(np.concatenate((decodes, padding)), 0),
        teams=(nothing if teams is None else teams, 0),
        prefills=(np.flatnonzero(new_tokens > 1), 0),
        in_turn=(of_states, 0),
        seen_ends=(step.seen_ends, 0),
        state_reads=(whole.state_reads, NO_SLOT),
        state_writes=(whole.state_writes, NO_SLOT),
        checked_start=(whole.query_start, int(whole.query_start[-1])),
        checked_context=(whole.context_len, 0),
        logit_rows=(step.logit_rows, 0),
        temperature=(batch.temperature, 0),
        log_min_p=(log_min_p, -np.inf),
        top_k=(batch.top_k, 0),
        top_p=(batch.top_p, 1.0),
        repetition=(batch.repetition_penalty, 1.0),
        presence=(batch.presence_penalty, 0),
        frequency=(batch.frequency_penalty, 0),
        seed=(batch.seed, 0),
        draw_position=(batch.position, 0),
        num_logprobs=(batch.num_logprobs, -1),
        target=(batch.target_ids, -1),
        row_source=(step.token_source[step.logit_rows], HOST_KNOWS),
        block_table=(nothing, None),
        window_tables=(nothing, None),
        window_slots=(nothing, None),
        hidden_ranges=(step.hidden_ranges, 0),
        place_ids=(step.place_ids, 0),
        place_shares=(step.place_shares, 0),
        tile_windows=(step.tile_windows, 0),
        lora_tiles=(tiles, 0),
        lora_order=(order, 0),
        seen_offsets=(batch.seen_offsets, int(batch.seen_offsets[-1])),
        bias_offsets=(batch.bias_offsets, int(batch.bias_offsets[-1])),
        seen_tokens=(batch.seen_tokens, 0),
        seen_counts=(batch.seen_counts, 0),
        bias_tokens=(batch.bias_tokens, 0),
        bias_values=(batch.bias_values, 0),
        processors=None if batch.processors is None else processor_contents(batch.processors),
        allowed=(nothing if batch.allowed is None else batch.allowed, 0xFFFFFFFF),
    )


def in_turn(step: StepInput) -> tuple[Int32Array, tuple[StateLaunch, ...]]:
    """Returns sequences in the order in which layers with states take them, and its launches.

    Parts of one sequence follow each other. Those of one turn are apart by how many tokens they
    have: one, few, or so many that chunks may take them.
    """
    counts, turns = np.diff(step.query_start), step.turns
    kinds = 3 * turns + (counts > 1) + (counts > MAX_KEPT_STATES)
    order = np.argsort(kinds, kind="stable").astype(np.int32)
    starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
    longest = np.maximum.reduceat(counts[order], starts).tolist()
    sizes = np.diff(starts, append=len(order)).tolist()
    return order, tuple(map(StateLaunch, sizes, longest))


def _slots_before(step: StepInput, shape: StepShape) -> npt.NDArray[np.int64]:
    """Returns where the tokens before those of the step are, int64 [T]; empty if nobody asks."""
    if shape.predictor is PredictorUse.NONE:
        return np.zeros(0, np.int64)
    owners = np.repeat(np.arange(step.num_sequences), np.diff(step.query_start))
    before = step.positions - 1
    blocks = step.block_table[owners, before // BLOCK_TOKENS].astype(np.int64)
    return np.where(before < 0, PADDING_SLOT, blocks * BLOCK_TOKENS + before % BLOCK_TOKENS)


@dataclass(frozen=True, slots=True, eq=False)
class StagedRows:
    """Rows in pinned memory: embeddings instead of the table's, or patches of images."""

    driver: Driver
    stream: int
    address: int  # [parts, E, features], of the type of what they are copied to
    tokens: Int32Array  # [E], of the step, in ascending order
    parts: int = 1

    def copy_to(self, x: DeviceArray) -> None:
        """Copies the rows of the first part over those of their tokens in x, [T, features]."""
        row_bytes = x.shape[1] * x.dtype.itemsize
        for first, end, token in self.runs():
            target = x.address + token * row_bytes
            source = self.address + first * row_bytes
            self.driver.copy_to_device(target, source, (end - first) * row_bytes, self.stream)

    def copy_part(self, part: int, x: DeviceArray) -> None:
        """Copies the rows of a part to x, [E, features]."""
        nbytes = len(self.tokens) * x.shape[1] * x.dtype.itemsize
        self.driver.copy_to_device(x.address, self.address + part * nbytes, nbytes, self.stream)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yields rows of tokens that follow each other: the first, that behind, the token."""
        gaps = np.flatnonzero(np.diff(self.tokens) != 1) + 1
        for first, end in pairwise([0, *gaps.tolist(), len(self.tokens)]):
            yield first, end, int(self.tokens[first])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVariant:
    """Which of several ways a step takes that only decodes.

    Each gives the same bits; which is the fastest depends on the device (`run/trials/variants.py`).
    """

    fuses_attention: bool
    """Whether one launch rotates, stores, attends and puts splits together, or one each."""
    norms_products: bool
    """Whether the last block of a product adds it to the residual and norms the sum."""
    defers_norms: bool
    """Whether products are added where they are made, and what reads the sum completes its norm."""
    rounds_gated: bool
    """Whether the product with gate and up is rounded to int8 by the launch that makes it."""


PLAIN: Final = StepVariant(
    fuses_attention=False, norms_products=False, defers_norms=False, rounds_gated=False
)
"""The way of all other steps."""
_FUSED: Final = replace(PLAIN, fuses_attention=True)
_ROUNDED: Final = replace(_FUSED, rounds_gated=True)
VARIANTS: Final = MappingProxyType(
    {
        "plain": PLAIN,
        "fused": _FUSED,
        "rounded": _ROUNDED,
        "fewest": replace(_ROUNDED, norms_products=True),
        "deferred": replace(_ROUNDED, defers_norms=True),
        "deferred-plain": replace(_ROUNDED, defers_norms=True, fuses_attention=False),
    }
)
"""By name: those that there is a choice of."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """A step as the operations see it: its sizes, and its arrays on the device."""

    shape: StepShape
    inputs: StepArrays[DeviceArray]
    needs: SamplingNeeds
    variant: StepVariant = PLAIN
    host: StepInput | None = None  # for logits processors, which need no other operation
    embeddings: StagedRows | None = None
    patches: StagedRows | None = None  # of images, for a tower

    @property
    def rope_rows(self) -> DeviceArray:
        """The row of the table of rotations for each token, int32 [T]."""
        return self.inputs.rope_rows if self.shape.has_axes else self.inputs.positions
