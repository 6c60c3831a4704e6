"""Draft tokens of one sequence, for speculative decoding, and how often they were accepted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import numpy as np

from rocmforge.backend.protocol import Int32Array

_NO_GUESSES: Final = np.zeros(0, np.int32)
_FADING: Final = 0.9
"""What an old guess counts when the next ones have been checked."""


class Guesser(Enum):
    """Who guesses."""

    LOOKUP = auto()
    MODEL = auto()


@dataclass(slots=True)
class Acceptance:
    """How often a guess is right if all before it were right. Begins well, to be tried at all."""

    right: float = 1.5
    checked: float = 2.0

    def take(self, drafted: int, accepted: int) -> None:
        """Counts the guesses of one step; those behind the first wrong one say nothing."""
        self.right = _FADING * self.right + accepted
        self.checked = _FADING * self.checked + min(accepted + 1, drafted)

    def forgive(self) -> None:
        """Goes half of the way back to the beginning."""
        self.right, self.checked = (self.right + 1.5) / 2, (self.checked + 2) / 2

    @property
    def rate(self) -> float:
        """Between 0 and 1."""
        return min(self.right / self.checked, 1.0)


class Drafting:
    """The guesses for one sequence.

    Args:
        limits: how many tokens each may guess in a step.
    """

    def __init__(self, limits: dict[Guesser, int]) -> None:
        self.limits = limits
        self.acceptance = {guesser: Acceptance() for guesser in Guesser}
        self.guesses: Int32Array = _NO_GUESSES  # for the next step
        self.guesser = Guesser.LOOKUP  # whose they are
        self.paused_until = 0  # the sequence has so many tokens

    def take_guesses(self) -> Int32Array:
        """The guesses, once."""
        guesses, self.guesses = self.guesses, _NO_GUESSES
        return guesses

    def settle(self, drafted: int, accepted: int) -> None:
        """Learns how many of the last guesses were right."""
        self.acceptance[self.guesser].take(drafted, accepted)

    def pause(self, until: int) -> None:
        """Lets the sequence go on without guesses, and then try again with less prejudice."""
        self.paused_until = until
        for acceptance in self.acceptance.values():
            acceptance.forgive()
