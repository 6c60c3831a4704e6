"""A step on the device: one pinned buffer up, one down, and arrays at known places in them.

All inputs of a step are packed into one buffer and travel in one copy; so do all results. Where
each array lies follows from the `StepShape` alone, so a captured graph finds it there again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocmforge.backend.protocol import SamplingBatch, StepInput
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.processor_arrays import NO_USES, UseSizes, use_contents
from rocmforge_hip.weights.adapters import tile_rows
from rocmforge_hip.weights.formats import round_up

_ALIGN: Final = 16
PADDING_SLOT: Final = -1
"""Slot of a token that only fills up a batch: nothing is stored for it."""
HOST_KNOWS: Final = -1


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
    lora_tiles: int = 0  # of rows with one adapter: see `adapters.tile_rows`
    sums: int = 0  # ranges of hidden states


@dataclass(frozen=True, slots=True)
class SamplingNeeds:
    """Which of the sampling kernels a step needs."""

    adjusts: bool  # a row has a penalty, a bias, a mask or a processor: what is drawn is a copy
    masks: bool  # a row has a mask
    draws: bool  # a row has a temperature
    filters: bool  # a drawing row has min-p, top-k or top-p
    logprobs: bool
    num_top: int
    processes: bool  # a row has logits processors

    @classmethod
    def of(cls, batch: SamplingBatch) -> SamplingNeeds:
        """What these rows need."""
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
        """Those of these rows."""
        words = 0 if batch.allowed is None else batch.allowed.shape[1]
        uses = UseSizes.of(batch.processors)
        return cls(len(batch.seen_tokens), len(batch.bias_tokens), words, uses)


NO_LISTS: Final = ListSizes(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Section:
    """One array in the input buffer."""

    offset: int  # bytes
    count: int
    dtype: np.dtype[Any]

    @property
    def stop(self) -> int:
        """Byte behind it."""
        return self.offset + self.count * self.dtype.itemsize


_SAMPLING: Final = (
    ("temperature", "f4"),
    ("log_min_p", "f4"),
    ("top_k", "i4"),
    ("top_p", "f4"),
    ("repetition", "f4"),
    ("presence", "f4"),
    ("frequency", "f4"),
    ("seed", "u8"),
    ("draw_position", "i4"),
    ("num_logprobs", "i4"),
    ("target", "i4"),
    ("row_source", "i4"),
)


class StepLayout:
    """Where the arrays of a step of some shape lie in its buffer."""

    def __init__(self, shape: StepShape, lists: ListSizes = NO_LISTS) -> None:
        self.shape = shape
        self._sections: dict[str, Section] = {}
        self._end = 0
        tokens, sequences, rows = shape.tokens, shape.sequences, shape.rows
        for name in ("token_ids", "token_source", "positions"):
            self._add(name, tokens, "i4")
        self._add("slots", tokens, "i8")
        self._add("query_start", sequences + 1, "i4")
        for name in ("context_len", "decodes", "prefills"):
            self._add(name, sequences, "i4")
        self._add("logit_rows", rows, "i4")
        for name, dtype in _SAMPLING:
            self._add(name, rows, dtype)
        self._add("block_table", sequences * shape.blocks, "i4")
        self._add("hidden_ranges", 2 * shape.sums, "i4")
        self._add("lora_tiles", 3 * shape.lora_tiles, "i4")
        self._add("lora_order", tokens if shape.lora_tiles else 0, "i4")
        # Their sizes are not part of the shape: rows with lists are not sampled within a graph.
        self._add("seen_offsets", rows + 1, "i4")
        self._add("bias_offsets", rows + 1, "i4")
        self._add("seen_tokens", lists.seen, "i4")
        self._add("seen_counts", lists.seen, "i4")
        self._add("bias_tokens", lists.biases, "i4")
        self._add("bias_values", lists.biases, "f4")
        for name, count, dtype in lists.uses.sections(rows):
            self._add(name, count, dtype)
        self._add("allowed", rows * lists.mask_words, "u4")

    @property
    def nbytes(self) -> int:
        """Bytes to copy."""
        return self._end

    @property
    def masks(self) -> Section:
        """The masks of all rows, the last of the arrays."""
        return self._sections["allowed"]

    def _add(self, name: str, count: int, dtype: npt.DTypeLike) -> None:
        section = Section(round_up(self._end, _ALIGN), count, np.dtype(dtype))
        self._sections[name] = section
        self._end = section.stop

    def arrays(self, base: int) -> dict[str, DeviceArray]:
        """All arrays, of a buffer at this address in device memory."""
        return {
            name: DeviceArray(base + section.offset, (section.count,), section.dtype)
            for name, section in self._sections.items()
        }

    def pack(self, step: StepInput, buffer: npt.NDArray[np.uint8]) -> None:
        """Writes a step that is not larger than the shape; what is left over becomes padding."""
        for name, values, padding in _contents(step, self.shape):
            section = self._sections[name]
            target = buffer[section.offset : section.stop].view(section.dtype)
            count = len(values)
            target[:count] = values
            if count < section.count:
                target[count:] = padding
        table = self._sections["block_table"]
        target = buffer[table.offset : table.stop].view(table.dtype)
        target = target.reshape(self.shape.sequences, self.shape.blocks)
        rows, columns = step.block_table.shape
        columns = min(columns, self.shape.blocks)
        target[:rows, :columns] = step.block_table[:, :columns]


def _contents(
    step: StepInput, shape: StepShape
) -> Iterator[tuple[str, npt.NDArray[Any], int | float]]:
    """Name, values and padding of every array but the block table."""
    new_tokens = np.diff(step.query_start)
    batch = step.sampling
    yield "token_ids", step.token_ids, 0
    yield "token_source", step.token_source, HOST_KNOWS
    yield "positions", step.positions, 0
    yield "slots", step.slot_mapping, PADDING_SLOT
    yield "query_start", step.query_start, int(step.query_start[-1])
    yield "context_len", step.context_len, 0
    # The decodes of a graph stand first, so its padding is the sequences behind them.
    decodes = np.flatnonzero(new_tokens == 1)
    padding = np.arange(len(decodes), shape.decodes)
    yield "decodes", np.concatenate((decodes, padding)), 0
    yield "prefills", np.flatnonzero(new_tokens > 1), 0
    yield "logit_rows", step.logit_rows, 0
    if shape.lora_tiles:
        tiles, order = tile_rows(step.token_adapters)
        yield "lora_tiles", tiles.reshape(-1), 0
        yield "lora_order", order, 0
    yield "temperature", batch.temperature, 0.0
    with np.errstate(divide="ignore"):
        yield "log_min_p", np.log(batch.min_p), -np.inf
    yield "top_k", batch.top_k, 0
    yield "top_p", batch.top_p, 1.0
    yield "repetition", batch.repetition_penalty, 1.0
    yield "presence", batch.presence_penalty, 0.0
    yield "frequency", batch.frequency_penalty, 0.0
    yield "seed", batch.seed, 0
    yield "draw_position", batch.position, 0
    yield "num_logprobs", batch.num_logprobs, -1
    yield "target", batch.target_ids, -1
    yield "row_source", step.token_source[step.logit_rows], HOST_KNOWS
    yield "hidden_ranges", step.hidden_ranges.reshape(-1), 0
    yield "seen_offsets", batch.seen_offsets, int(batch.seen_offsets[-1])
    yield "bias_offsets", batch.bias_offsets, int(batch.bias_offsets[-1])
    if len(batch.seen_tokens):
        yield "seen_tokens", batch.seen_tokens, 0
        yield "seen_counts", batch.seen_counts, 0
    if len(batch.bias_tokens):
        yield "bias_tokens", batch.bias_tokens, 0
        yield "bias_values", batch.bias_values, 0.0
    if batch.allowed is not None:
        yield "allowed", batch.allowed.reshape(-1), 0xFFFFFFFF
    if batch.processors is not None:
        yield from use_contents(batch.processors)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """What the operations see of a step: its sizes, and its arrays on the device."""

    shape: StepShape
    inputs: dict[str, DeviceArray]
    needs: SamplingNeeds
    host: StepInput | None = None  # for logits processors, which need no other operation


@dataclass(frozen=True, eq=False)
class OutputLayout:
    """Where the results of `rows` rows with `num_top` top_logprobs lie in the output buffer.

    The tokens come first, wherever the others lie: the next step reads them there. Sums of hidden
    states come last.
    """

    rows: int
    logprobs: bool
    num_top: int
    sums: int = 0
    hidden_size: int = 0

    @cached_property
    def _offsets(self) -> tuple[int, int, int, int]:
        chosen = round_up(self.rows * 4, _ALIGN)
        ids = chosen + round_up(self.rows * 4, _ALIGN) * self.logprobs
        values = ids + round_up(self.rows * self.num_top * 4, _ALIGN)
        return chosen, ids, values, values + round_up(self.rows * self.num_top * 4, _ALIGN)

    @property
    def nbytes(self) -> int:
        """Bytes to copy."""
        return self._offsets[3] + self.sums * self.hidden_size * 4

    def hidden(self, base: int) -> DeviceArray:
        """Sums of hidden states, on the device."""
        shape = (self.sums, self.hidden_size)
        return DeviceArray(base + self._offsets[3], shape, np.dtype("f4"))

    def read_hidden(self, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32] | None:
        """A copy of the sums, [sums, hidden_size]; None if there are none."""
        if not self.sums:
            return None
        sums = buffer[self._offsets[3] : self.nbytes].view(np.float32)
        return sums.reshape(self.sums, self.hidden_size).copy()

    def arrays(self, base: int) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Log-probabilities of the tokens, ids of the top_logprobs, and those; on the device."""
        chosen, ids, values, _ = self._offsets
        shape = (self.rows, self.num_top)
        return (
            DeviceArray(base + chosen, (self.rows,), np.dtype("f4")),
            DeviceArray(base + ids, shape, np.dtype("i4")),
            DeviceArray(base + values, shape, np.dtype("f4")),
        )

    def read(
        self, buffer: npt.NDArray[np.uint8], rows: int
    ) -> tuple[npt.NDArray[np.int32], Any, Any, Any]:
        """Copies of the first rows of: tokens, log-probabilities, ids, their log-probabilities."""
        chosen, ids, values, _ = self._offsets
        tokens = buffer[: self.rows * 4].view(np.int32)[:rows].copy()
        logprobs = top_ids = top_logprobs = None
        if self.logprobs:
            logprobs = buffer[chosen : chosen + self.rows * 4].view(np.float32)[:rows].copy()
        if self.num_top:
            shape = (self.rows, self.num_top)
            size = self.rows * self.num_top * 4
            top_ids = buffer[ids : ids + size].view(np.int32).reshape(shape)[:rows].copy()
            top_logprobs = buffer[values : values + size].view(np.float32)
            top_logprobs = top_logprobs.reshape(shape)[:rows].copy()
        return tokens, logprobs, top_ids, top_logprobs
