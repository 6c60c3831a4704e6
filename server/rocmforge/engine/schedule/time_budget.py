"""How many tokens of prompts fit into what a step may take while sequences decode."""

from __future__ import annotations

from math import inf, sqrt
from typing import Final

from rocmforge.engine.schedule.step_costs import Prices, StepCosts, StepWork, pairs_of

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
        self._prices = Prices(0, 0, 0, 0, 0) if prices is None else prices.scaled(costs.margin)
        spent = self._prices.of(decodes)
        self._left_ns = max(max_stall_ns - spent, spent)
        self._tokens_left = max(costs.most_tokens - decodes.tokens, LEAST_TOKENS)
        self._reserved = 0.0, 0

    def reserve_half(self) -> None:
        """Keeps half of what is left for `give_back`."""
        self._reserved = self._left_ns / 2, (self._tokens_left + 1) // 2
        self._left_ns -= self._reserved[0]
        self._tokens_left -= self._reserved[1]

    def give_back(self) -> None:
        """Adds what was kept."""
        self._left_ns += self._reserved[0]
        self._tokens_left += self._reserved[1]
        self._reserved = 0.0, 0

    def room(self, start: int) -> int:
        """Returns how many tokens of a prompt may follow its first `start` ones."""
        if self._left_ns <= 0:
            return 0
        # n tokens take linear * n + pair * n^2 / 2.
        pair = self._prices.pair
        linear = self._prices.token + pair * (start + 0.5)
        root = linear + sqrt(linear * linear + 2 * pair * self._left_ns)
        fits = 2 * self._left_ns / root if root > 0 else inf
        return max(0, int(min(fits, self._tokens_left)))

    def take(self, start: int, count: int, rows: int) -> None:
        """Spends what these tokens take."""
        self._tokens_left -= count
        self._left_ns -= (
            self._prices.token * count
            + self._prices.row * rows
            + self._prices.pair * pairs_of(start, count)
        )
