"""Times that steps took lately."""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial
from statistics import median_low

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

_REMEMBERED = 3
_BELIEVED = 2
"""Measurements. The first of its kind may have waited for something that happens only once."""


class StepTimes:
    """Times of steps by their size; between the sizes that were seen, a straight line."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = defaultdict(partial(deque, maxlen=_REMEMBERED))
        self._usual: dict[int, float] = {}  # of sizes that were seen often enough

    def take(self, size: int, time_ns: float) -> None:
        """Learns what a step of this size took."""
        seen = self._seen[size]
        seen.append(time_ns)
        if len(seen) >= _BELIEVED:
            self._usual[size] = median_low(seen)

    def forget(self, size: int) -> None:
        """Doubts what is known of this size, so that it will be tried again."""
        self._seen.pop(size, None)
        self._usual.pop(size, None)

    def knows(self, size: int) -> bool:
        """Returns whether steps of this size were seen often enough, or smaller and larger ones."""
        return bool(self._usual) and min(self._usual) <= size <= max(self._usual)

    def estimate(self, sizes: npt.NDArray[np.integer]) -> Float64Array:
        """Estimates the nanoseconds of steps of these sizes, float64 [N]; 0 if nothing is known.

        Beyond the sizes that were seen it is what the nearest took: that is too little, so that
        they are tried.
        """
        if not self._usual:
            return np.zeros(len(sizes))
        known = sorted(self._usual)
        times: Float64Array = np.interp(sizes, known, [self._usual[size] for size in known])
        return times
