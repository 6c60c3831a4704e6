"""Whether blocks are brought back, or computed again: by what both take, as learnt on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

ComputeNs = Callable[[int, int], float | None]
"""Returns what computing takes from a token on, for so many tokens; None = not known yet."""

_SHARE_OF_NEWS: Final = 0.3
_HOPE: Final = 0.95  # of what copying was thought to take, after it was not done


class CopyTime:
    """The time that it takes to bring a block from one place to the next, in nanoseconds.

    Nothing is known at first, and hoped to be nothing: the first copy tells. What was found too
    slow is thought a little faster each time, so that it is tried again some day.
    """

    def __init__(self) -> None:
        self.block_ns = 0.0

    def observe(self, blocks: int, total_ns: float) -> None:
        """Learns from a copy."""
        found = total_ns / blocks
        known = self.block_ns or found
        self.block_ns = known + _SHARE_OF_NEWS * (found - known)

    def hope(self) -> None:
        """Counts a copy that was not tried."""
        self.block_ns *= _HOPE


def worth_copying(
    start: int, block_size: int, copies: Sequence[float], compute_ns: ComputeNs
) -> int:
    """Returns how many blocks to bring back, from the first on, to save the most time.

    Args:
        start: tokens that are there already.
        block_size: tokens of a block.
        copies: nanoseconds of each block that could be brought back.
        compute_ns: what computing takes.
    """
    best, most_saved, spent = 0, 0.0, 0.0
    for count, each in enumerate(copies, 1):
        spent += each
        computing = compute_ns(start, count * block_size)
        if computing is None:
            return len(copies)
        if computing - spent > most_saved:
            best, most_saved = count, computing - spent
    return best


def worth_restoring(
    base: int,
    start: int,
    block_size: int,
    copies: Sequence[float],
    state_copy: Callable[[int], float | None],
    compute_ns: ComputeNs,
) -> int:
    """Returns up to which block to bring a prefix back, of a model with states.

    It is the last one with states at its end that take less time to bring back, with the blocks
    before them, than to compute.

    Args:
        base: the last block with states on the device.
        start: blocks that are on the device.
        block_size: tokens of a block.
        copies: nanoseconds of each block from there on that could be brought back.
        state_copy: those of the states at the end of so many blocks; None = there are none.
        compute_ns: what computing takes.

    Returns:
        The number of blocks; `base` if none are worth it.
    """
    for end in range(start + len(copies), base, -1):
        spent = state_copy(end)
        if spent is None:
            continue
        spent += sum(copies[: max(0, end - start)])
        computing = compute_ns(base * block_size, (end - base) * block_size)
        if computing is None or computing > spent:
            return end
    return base
