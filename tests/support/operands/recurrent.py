"""Batches of sequences with recurrent states, for tests of their kernels.

Slots that nobody may read hold NaN, and so do rows of the inputs that belong to no sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.launches.kernels import Device, DeviceArray

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

Run = Callable[[slice, Float64], tuple[Float64, Float64]]
"""Rows of a sequence and the state before them make results and the state after them."""

NO_SLOT = -1
UNTOUCHED = 77.0
_ROWS_BEHIND = 2  # the last sequence


@dataclass(frozen=True, slots=True)
class Part:
    """The new tokens of one sequence."""

    tokens: int
    slot: int  # of the state before them
    fresh: bool = False
    writes: Mapping[int, int] | None = None  # token -> slot; None = the last one's stays in `slot`

    @property
    def kept(self) -> Mapping[int, int]:
        """The slot of the state after each token of which it is kept."""
        if self.writes is not None:
            return self.writes
        return {self.tokens - 1: self.slot} if self.tokens and self.slot != NO_SLOT else {}


@dataclass(frozen=True)
class Batch:
    """The sequences of a step; `taken` are those that the launch names."""

    parts: tuple[Part, ...]
    num_slots: int
    taken: tuple[int, ...]

    @classmethod
    def of(cls, *parts: Part, taken: tuple[int, ...] | None = None) -> Batch:
        """A batch of which all sequences are taken, unless it is said which are."""
        slots = max(slot for part in parts for slot in (part.slot, *part.kept.values())) + 2
        return cls(parts, slots, tuple(range(len(parts))) if taken is None else taken)

    @cached_property
    def starts(self) -> npt.NDArray[np.int32]:
        """The first token of each sequence, and the one behind the last."""
        return np.cumsum([0, *(part.tokens for part in self.parts)]).astype(np.int32)

    @property
    def rows(self) -> int:
        """Rows of the inputs, with some behind the last sequence."""
        return int(self.starts[-1]) + _ROWS_BEHIND

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that is taken."""
        return max(self.parts[i].tokens for i in self.taken)

    def of_taken(self) -> Iterator[tuple[Part, slice]]:
        """The sequences that are taken, each with its rows."""
        for i in self.taken:
            yield self.parts[i], slice(self.starts[i], self.starts[i + 1])

    def arrays(self, device: Device) -> tuple[DeviceArray, ...]:
        """Sequences, query_start, context_len, reads and writes, as kernels take them."""
        contexts = [part.tokens + (0 if part.fresh else 5) for part in self.parts]
        writes = np.full(self.rows, NO_SLOT, np.int32)
        writes[self.starts[-1] :] = 0  # of no sequence
        for part, start in zip(self.parts, self.starts.tolist(), strict=False):
            for token, slot in part.kept.items():
                writes[start + token] = slot
        return (
            device.upload(np.array(self.taken, np.int32), "sequences"),
            device.upload(self.starts, "query_start"),
            device.upload(np.array(contexts, np.int32), "context_len"),
            device.upload(np.array([part.slot for part in self.parts], np.int32), "reads"),
            device.upload(writes, "writes"),
        )

    def random_rows(self, random: np.random.Generator, columns: int) -> Float32:
        """Inputs; those of rows that are not taken are NaN."""
        rows = np.full((self.rows, columns), np.nan, np.float32)
        for _, there in self.of_taken():
            count = there.stop - there.start
            rows[there] = random.standard_normal((count, columns)).astype(np.float32)
        return rows

    def random_states(self, random: np.random.Generator, *shape: int) -> Float32:
        """A state in each slot that a sequence goes on from; the others hold NaN."""
        states = np.full((self.num_slots, *shape), np.nan, np.float32)
        for part, _ in self.of_taken():
            if part.slot != NO_SLOT and not part.fresh:
                states[part.slot] = random.standard_normal(shape).astype(np.float32)
        return states

    def first_state(self, part: Part, states: Float32) -> Float64:
        """What a sequence begins with."""
        if part.fresh or part.slot == NO_SLOT:
            return np.zeros(states.shape[1:])
        state: Float64 = states[part.slot].astype(np.float64)
        return state

    def run(self, run: Run, before: Float32, out: Float64) -> Float64:
        """What all slots hold in the end; the results go to their rows of `out`."""
        states = before.astype(np.float64)
        for part, rows in self.of_taken():
            first = self.first_state(part, before)
            out[rows], last = run(rows, first)
            for token, slot in part.kept.items():
                stop = int(rows.start) + token + 1
                states[slot] = last if stop == rows.stop else run(slice(rows.start, stop), first)[1]
        return states


def wide(x: Array, stride: int) -> Float32:
    """The same rows in wider ones, of which the rest is NaN."""
    result = np.full((len(x), stride), np.nan, np.float32)
    result[:, : x.shape[1]] = x
    return result


BATCHES = {
    "one_token": Batch.of(Part(1, 0)),
    "first_token": Batch.of(Part(1, 1, fresh=True)),
    "decodes": Batch.of(Part(1, 3), Part(1, 0), Part(1, 2, fresh=True), Part(1, NO_SLOT)),
    "one_prefill": Batch.of(Part(19, 1, fresh=True)),
    "mixed": Batch.of(
        *(Part(1, 4), Part(2, 0), Part(9, 6, fresh=True), Part(3, 2, fresh=True)),
        *(Part(17, 1), Part(0, NO_SLOT), Part(8, 5), Part(4, NO_SLOT)),
    ),
    "some_are_taken": Batch.of(Part(1, 0), Part(5, 1), Part(1, 2), Part(6, 3), taken=(3, 1)),
    # Two go on from one state, which stays; states between tokens are kept.
    "other_slots": Batch.of(
        *(Part(1, 0, writes={0: 4}), Part(6, 0, writes={0: 5, 1: 6, 5: 7})),
        Part(4, 1, writes={0: 8, 2: 9, 3: 1}),
        Part(3, NO_SLOT, fresh=True, writes={0: 3, 2: 10}),
        Part(19, 2, writes={0: 11, 6: 12, 7: 13, 8: 14, 15: 15, 17: 16, 18: 2}),
    ),
}
# Around the ends of chunks of 64 tokens.
CHUNKED = {
    "one_chunk": Batch.of(Part(64, 1)),
    "one_token_more": Batch.of(Part(65, 0, fresh=True)),
    "mixed": Batch.of(
        *(Part(1, 0), Part(63, 2), Part(130, 3, fresh=True), Part(40, NO_SLOT), Part(128, 1)),
        taken=(1, 2, 3, 4),
    ),
    "other_slots": Batch.of(Part(65, 0, writes={64: 1}), Part(64, 0, writes={63: 2})),
}
# Of one token each, or none.
DECODES = {
    "one": Batch.of(Part(1, 0)),
    "fresh": Batch.of(Part(1, 1, fresh=True)),
    "decodes": Batch.of(
        *(Part(1, 3), Part(1, 0), Part(1, 2, fresh=True), Part(1, NO_SLOT), Part(0, NO_SLOT))
    ),
    "some_are_taken": Batch.of(Part(1, 0), Part(1, 1), Part(1, 2), Part(1, 3), taken=(3, 1)),
    # Two go on from one state, which stays; of the others, one is not kept.
    "other_slots": Batch.of(
        *(Part(1, 0, writes={0: 4}), Part(1, 0, writes={0: 5}), Part(1, 1, writes={})),
        *(Part(1, NO_SLOT, fresh=True, writes={0: 3}), Part(1, 2)),
    ),
}
