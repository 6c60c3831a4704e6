"""The draft tokens of one sequence, for speculative decoding, and how many were accepted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import numpy as np

from rocmforge.backend.arrays import Int32Array

_NO_TOKENS: Final = np.zeros(0, np.int32)
_FADING: Final = 0.9
"""The weight of an old draft token after each later check."""


_PAUSE: Final = 64
"""Tokens after which drafting is tried again for a sequence. Meanwhile it does not wait until its
last token is known, so it loses nothing where two steps are in flight."""
_LONGEST_PAUSE: Final = 1024
_LASTING: Final = 4
"""Checks between two pauses after which the next is a short one again."""


class DraftMethod(Enum):
    """The source of draft tokens."""

    LOOKUP = auto()
    MODEL = auto()
    PREDICTOR = auto()


@dataclass(slots=True)
class Acceptance:
    """The share of draft tokens that are accepted, given that all before them were.

    It begins high, so that drafting is tried at all.
    """

    accepted: float = 1.5
    checked: float = 2.0

    def count(self, drafted: int, accepted: int) -> None:
        """Counts the draft tokens of one step; those behind the first rejected one tell nothing."""
        self.accepted = _FADING * self.accepted + accepted
        self.checked = _FADING * self.checked + min(accepted + 1, drafted)

    def forgive(self) -> None:
        """Goes half of the way back to the beginning."""
        self.accepted, self.checked = (self.accepted + 1.5) / 2, (self.checked + 2) / 2

    @property
    def rate(self) -> float:
        """The share, from 0 to 1."""
        return min(self.accepted / self.checked, 1.0)


class Drafting:
    """The draft tokens of one sequence.

    Args:
        limits: by method, the draft tokens of one step at most.
    """

    def __init__(self, limits: dict[DraftMethod, int]) -> None:
        self.limits = limits
        self.acceptance = {method: Acceptance() for method in DraftMethod}
        self.tokens: Int32Array = _NO_TOKENS  # for the next step
        self.method = DraftMethod.LOOKUP  # where they come from
        self.paused_until = 0  # until the sequence has so many tokens
        self._pause = 0  # tokens of the last one
        self._checks = 0  # since then

    def take_tokens(self) -> Int32Array:
        """Returns the draft tokens, [K], and forgets them."""
        tokens, self.tokens = self.tokens, _NO_TOKENS
        return tokens

    def count(self, drafted: int, accepted: int) -> None:
        """Counts how many of the last draft tokens were accepted."""
        self.acceptance[self.method].count(drafted, accepted)
        self._checks += 1

    def pause(self, num_tokens: int) -> None:
        """Stops drafting for a while, then tries again with more hope.

        Each pause is twice as long as the one before it, unless drafting lasted between them.

        Args:
            num_tokens: that the sequence has.
        """
        lasted = self._checks >= _LASTING
        self._pause = _PAUSE if lasted or not self._pause else min(2 * self._pause, _LONGEST_PAUSE)
        self._checks = 0
        self.paused_until = num_tokens + self._pause
        for acceptance in self.acceptance.values():
            acceptance.forgive()
