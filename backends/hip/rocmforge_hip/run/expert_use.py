"""Which experts deserve a seat on the device: those that tokens chose most of late.

Pure arithmetic: L layers whose experts are hosted, E experts of the layer that has most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

_HALF_LIFE: Final = 256
"""Tokens after which a choice counts half."""
_LEAST_GAIN: Final = 1.5
_LEAST_SHARE: Final = 0.25
"""An expert takes the seat of another if it was chosen so many times, and this share, more."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Swap:
    """An expert that is to take the seat of another; `layer` counts hosted layers."""

    layer: int
    seat: int
    leaving: int
    coming: int


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """Experts that a step read, each once in a layer."""

    all: int
    host: int  # those of them that had no seat


class ExpertUse:
    """Scores of experts, and who sits where: the first of each layer to begin with.

    Args:
        experts: Of each layer.
        seats: Of each layer.
    """

    def __init__(self, experts: list[int], seats: list[int]) -> None:
        shape = len(experts), max(experts)
        self._scores = np.zeros(shape, np.float32)
        self._first = np.arange(len(experts))[:, None, None] * shape[1]
        numbers = np.arange(shape[1])
        self._seat_of = np.where(numbers < np.array(seats)[:, None], numbers, -1)

    @property
    def seated(self) -> Bools:
        """Whether each expert has a seat, [L, E]; a copy."""
        return self._seat_of >= 0

    def add(self, chosen: npt.NDArray[np.int32], seated: Bools) -> ExpertReads:
        """Counts the choices of a step.

        Args:
            chosen: [L, tokens, num_chosen]; below 0: an expert that another device has.
            seated: Of the experts when the step began, [L, E].
        """
        tokens, size = chosen.shape[1], self._scores.size
        counts = np.bincount((chosen + self._first)[chosen >= 0], minlength=size)
        counts = counts.reshape(self._scores.shape)
        self._scores *= np.float32(0.5 ** (tokens / _HALF_LIFE))
        self._scores += counts
        read = counts > 0
        return ExpertReads(int(read.sum()), int((read & ~seated).sum()))

    def choose_swaps(self, most: int) -> tuple[Swap, ...]:
        """Returns swaps that are worth their copy, one of a layer, the best first."""
        seated, layers = self.seated, np.arange(len(self._scores))
        outside = np.where(seated, -1, self._scores)
        inside = np.where(seated, self._scores, np.inf)
        coming, leaving = outside.argmax(axis=1), inside.argmin(axis=1)
        least = inside[layers, leaving]
        gain = outside[layers, coming] - least
        worth = np.flatnonzero(gain > _LEAST_GAIN + _LEAST_SHARE * least)
        best = worth[np.argsort(-gain[worth], kind="stable")][:most]
        return tuple(
            Swap(
                layer=int(layer),
                seat=int(self._seat_of[layer, leaving[layer]]),
                leaving=int(leaving[layer]),
                coming=int(coming[layer]),
            )
            for layer in best
        )

    def leave(self, swap: Swap) -> None:
        """Takes the seat from the expert that leaves."""
        self._seat_of[swap.layer, swap.leaving] = -1

    def come(self, swap: Swap) -> None:
        """Gives the seat to the expert that comes."""
        self._seat_of[swap.layer, swap.coming] = swap.seat
