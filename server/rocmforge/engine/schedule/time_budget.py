"""How many tokens of prompts fit into what a step may take while sequences decode."""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import Final

from rocmforge.engine.schedule.step_costs import TILES, Prices, StepCosts, StepWork, pairs_of

LEAST_TOKENS: Final = 16
"""Of the first prompt in order, in each step, however long they take: so it always gets on."""


class TimeBudget:
    """The time that is left in a step for prompts.

    Prompts get all that the decodes of the step leave of `max_stall_ns`. They never get less than
    the decodes take: where those alone take longer than the stall that is allowed, as on a slow
    device, prompts and answers have the device half and half, and neither makes the other more
    than twice as slow.

    Args:
        costs: what steps cost.
        decodes: what is in the step already.
        max_stall_ns: how long the step should take at most.
    """

    def __init__(self, costs: StepCosts, decodes: StepWork, max_stall_ns: int) -> None:
        prices = costs.prices
        self._prices = (
            Prices(*[0.0] * len(Prices._fields)) if prices is None else prices.scaled(costs.margin)
        )
        spent = self._prices.of(decodes)
        self._tokens_ns = self._prices.of_tokens(decodes.tokens)
        self._fixed_ns = spent - self._tokens_ns
        # What fills the last tile of the decodes is not theirs.
        alone = self._fixed_ns + self._prices.filled * decodes.tokens
        self._left_ns = max(max_stall_ns - spent, alone)
        self._tokens = self._decodes = decodes.tokens
        self._tokens_left = max(costs.most_tokens - decodes.tokens, LEAST_TOKENS)
        self._tokens_reserved = 0
        self._half_ns = inf
        self._kept, self._kept_ns = 0, 0.0

    def reserve_half(self, start: int, count: int) -> None:
        """Keeps half of what is left for `give_back`.

        That is half of the time as it would be with full tiles, and of the tokens that the first
        prompt in order has room for, wherever tiles end. Half of the time alone might be too little
        for another tile, and half of the tokens is less than half of the time.

        Args:
            start: how many tokens of the first prompt in order are computed.
            count: how many are not.
        """
        self._kept = min((self.room(start) + 1) // 2, count)
        self._kept_ns = self._prices.pair * pairs_of(start, self._kept)
        self._half_ns = self._left_ns / 2
        self._tokens_reserved = (self._tokens_left + 1) // 2
        self._tokens_left -= self._tokens_reserved

    def give_back(self) -> None:
        """Adds what was kept."""
        self._kept, self._kept_ns, self._half_ns = 0, 0.0, inf
        self._tokens_left += self._tokens_reserved
        self._tokens_reserved = 0

    def room(self, start: int) -> int:
        """Returns how many tokens of a prompt may follow its first `start` ones."""
        counts = range(1, self._tokens_left + 1)
        fits = bisect_right(counts, self._left_ns, key=lambda count: self._price(start, count))
        if self._half_ns < inf:
            half = self._half_ns
            return bisect_right(counts[:fits], half, key=lambda count: self._filled(start, count))
        if self._tokens > self._decodes:
            return fits  # what it left, others would take
        # Fewer may be computed faster, if they fill the tiles that are begun.
        whole = [(self._tokens + fits) // tile * tile - self._tokens for tile in TILES]
        return max([fits, *[count for count in whole if count > 0]], key=self._speed)

    def _price(self, start: int, count: int) -> float:
        """Returns what `count` more tokens take, with those that are kept behind them.

        Tokens that fill a tile take nothing of its price.
        """
        tokens_ns = self._prices.of_tokens(self._tokens + count + self._kept)
        pairs_ns = self._prices.pair * pairs_of(start, count) + self._kept_ns
        return tokens_ns - self._tokens_ns + pairs_ns

    def _filled(self, start: int, count: int) -> float:
        """Returns what `count` tokens take where all tiles are full."""
        return self._prices.filled * count + self._prices.pair * pairs_of(start, count)

    def _speed(self, count: int) -> float:
        """Returns how many tokens of prompts a nanosecond computes, whatever they attend to."""
        tokens = self._tokens + count
        return count / (self._fixed_ns + self._prices.of_tokens(tokens) or 1.0)

    def take(self, start: int, count: int, rows: int) -> None:
        """Spends what these tokens take."""
        self._tokens += count
        self._tokens_left -= count
        before, self._tokens_ns = self._tokens_ns, self._prices.of_tokens(self._tokens)
        others_ns = self._prices.pair * pairs_of(start, count) + self._prices.row * rows
        self._left_ns -= self._tokens_ns - before + others_ns
        self._half_ns -= self._prices.filled * count + others_ns
