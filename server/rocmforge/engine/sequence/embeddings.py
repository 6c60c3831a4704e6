"""The rows of embeddings in the prompt of one sequence, by position."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.engine.ipc.prompt import Prompt


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """A span of embeddings at its place."""

    start: int  # position of its first row
    rows: Float32Array  # [num_rows, hidden_size]
    identity: bytes
    both_ways: bool

    @property
    def end(self) -> int:
        return self.start + len(self.rows)


class Embeddings:
    """All of a prompt's; nothing changes them.

    Args:
        prompt: has at least one span of embeddings.
    """

    def __init__(self, prompt: Prompt) -> None:
        self._spans = [
            _Placed(start, span.values, span.identity, span.both_ways)
            for start, span in prompt.embeddings
        ]
        self._ends = [span.end for span in self._spans]
        self.mask: npt.NDArray[np.bool_] = np.zeros(len(prompt), np.bool_)
        """Whether each position of the prompt has a row, [num_prompt]."""
        for span in self._spans:
            self.mask[span.start : span.end] = True

    def identity(self, start: int, end: int) -> bytes:
        """Returns 16 bytes that say which rows stand where in `start..end`; b"" if none does."""
        parts = [
            pack("<4q", first - start, first - span.start, stop - first, len(span.identity))
            + span.identity
            for span, first, stop in self._pieces(start, end)
        ]
        return blake2b(b"".join(parts), digest_size=16).digest() if parts else b""

    def between(self, start: int, end: int) -> tuple[Int32Array, list[Float32Array]]:
        """Returns the positions within `start..end` that have rows, [E], and those in pieces."""
        pieces = list(self._pieces(start, end))
        if not pieces:
            return np.zeros(0, np.int32), []
        positions = [np.arange(first, stop, dtype=np.int32) for _, first, stop in pieces]
        rows = [span.rows[first - span.start : stop - span.start] for span, first, stop in pieces]
        return np.concatenate(positions), rows

    def whole_end(self, start: int, end: int) -> int:
        """Returns where a chunk from `start` may end at the latest, if it is to end by `end`.

        Rows that see each other both ways need all of them in the cache before any attends, so no
        chunk ends within their span. One may begin there: blocks that hold the first of them were
        computed with all, and their keys say with which.

        Returns:
            `start` if the rows that stand there do not end by `end`.
        """
        for span, _, _ in self._pieces(max(start, end - 1), end) if end > start else ():
            if span.both_ways and span.end > end:
                return max(start, span.start)
        return end

    def needed_end(self, start: int) -> int:
        """Returns where a chunk from `start` may end at the earliest, one token if it can."""
        for span, _, _ in self._pieces(start, start + 1):
            if span.both_ways:
                return span.end
        return start + 1

    def seen_ends(self, start: int, end: int) -> Int32Array | None:
        """Returns up to where each token of `start..end` sees: [end - start].

        None if each sees itself and what is before it.
        """
        spans = [span for span, _, _ in self._pieces(start, end) if span.both_ways]
        if not spans:
            return None
        ends = np.arange(start + 1, end + 1, dtype=np.int32)
        for span in spans:
            ends[max(span.start - start, 0) : span.end - start] = span.end
        return ends

    def _pieces(self, start: int, end: int) -> Iterator[tuple[_Placed, int, int]]:
        """Yields each span that reaches into `start..end`, and the positions that it has there."""
        for span in self._spans[bisect_right(self._ends, start) :]:
            if span.start >= end:
                return
            yield span, max(span.start, start), min(span.end, end)
