"""Hidden states of a prompt, combined into one vector (Reimers and Gurevych 2019, section 3)."""

from __future__ import annotations

import numpy as np

from rocmforge.backend.arrays import Float32Array
from rocmforge.engine.ipc.params import Pooling


class Pool:
    """The hidden states of a prompt, pooled while they come in. Mutable.

    Args:
        kind: the mean over all tokens, or the state of the first (cls) or the last one.
        num_prompt: tokens of the prompt.
    """

    def __init__(self, kind: Pooling, num_prompt: int) -> None:
        self._start = num_prompt - 1 if kind is Pooling.LAST else 0
        self.end = 1 if kind is Pooling.CLS else num_prompt
        self.next = self._start  # the first position whose state has not been claimed yet
        self._total: Float32Array | None = None

    def claim(self, start: int, end: int) -> tuple[int, int]:
        """Claims what is wanted of positions `start..end` of a step: the first, and how many."""
        first = max(start, self.next)
        count = max(0, min(end, self.end) - first)
        self.next += count
        return first, count

    def take(self, total: Float32Array) -> None:
        """Adds the sum of the states of claimed positions, float32 [D]."""
        self._total = total if self._total is None else self._total + total

    @property
    def result(self) -> Float32Array:
        """The pooled state, float32 [D]; only when all states have been taken."""
        assert self._total is not None, "the last token of a prompt is always computed"
        mean: Float32Array = self._total / np.float32(self.end - self._start)
        return mean
