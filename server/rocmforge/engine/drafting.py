"""What is guessed for one sequence, for speculative decoding, and how often that was right.

Prompt lookup (A. Saxena, 2023): what followed the last few tokens when they stood together before
may follow again. Answers that quote their prompt, such as edits and summaries, are full of that.
The other guesses come from a small model (`draft_model`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import numpy as np

from rocmforge.backend.protocol import Int32Array

_LONGEST, _SHORTEST = 4, 2
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


def look_up(tokens: Int32Array, count: int) -> Int32Array:
    """Up to `count` tokens that may follow; none if the last tokens stood nowhere before.

    The longest end of the sequence that stands in it once more decides, and of its places the
    last one that is followed by enough tokens.

    Args:
        tokens: the whole sequence, [N].
        count: how many tokens are wanted.
    """
    if count <= 0:
        return tokens[:0]
    for length in range(min(_LONGEST, len(tokens) - 1), _SHORTEST - 1, -1):
        places = _places(tokens, length)
        if len(places):
            full = places[places + count <= len(tokens)]
            start = int(full[-1] if len(full) else places[0])
            return tokens[start : start + count]
    return tokens[:0]


def _places(tokens: Int32Array, length: int) -> Int32Array:
    """Where the tokens go on behind earlier copies of the last `length` ones."""
    end = len(tokens) - length
    matches = np.ones(end, np.bool_)
    for i in range(length):
        matches &= tokens[i : i + end] == tokens[end + i]
    places: Int32Array = np.flatnonzero(matches).astype(np.int32) + np.int32(length)
    return places
