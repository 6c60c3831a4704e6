"""What shows that small packets wait until those before them are acknowledged."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

ROUNDS: Final = 5
KEPT_BACK_S: Final = 0.03
"""A client keeps acknowledgements back for 40 ms, and an answer that waits for one takes longer."""


def wait_for_them(measure: Callable[[], Sequence[float]]) -> bool:
    """Whether answers take that long: three of four in each of several rounds.

    A busy machine makes answers late, too, but not as many of them again and again.

    Args:
        measure: gives the seconds that each of many answers took.
    """
    return all(
        statistics.quantiles(measure(), n=4, method="inclusive")[0] > KEPT_BACK_S
        for _ in range(ROUNDS)
    )
