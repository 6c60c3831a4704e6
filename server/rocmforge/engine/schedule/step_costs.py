"""How long a step will take, learnt from the steps that were.

What makes a step long is not its number of tokens alone: the attention of a prompt's chunk costs
tokens times the context before them, so that a budget of tokens which is right at the beginning of
a prompt stalls every decode at its end. Prices, none negative, say what a step with prompts takes:
a fixed one, one for each token, each row of logits, each pair of a prompt's token and a position
that it attends to, and each position that a decode reads. Where matrix products compute whole tiles
of tokens, time is a staircase in their number. So a token that another tile of some size begins
with has a price for the whole tile, too: how much of the time is a staircase, and with which edges,
is learnt like everything else. At first nothing is.

- **Safe before anything is known.** The prices begin in proportions that are usual, at the level
  of the steps seen, and move as far as measurements tell them apart. Nothing is believed far from
  what was measured (`most_tokens`): the first step is small, and no step has more than twice the
  tokens of the largest one.
- **It forgets, but not what it has not seen for a while.** Steps are kept by kind (sizes of alike
  steps differ by less than 2), the last few of each of the last kinds. A thousand equal steps
  therefore don't wash out what a different one told.
- **It follows the clock.** If most steps of late took longer than predicted, or shorter, by about
  the same factor, everything will: all that was measured before is scaled by that factor.
- **Outliers count once.** Errors are relative to what was measured, so a step that took 50 times
  too long for reasons of its own (a page fault, the first of its size) weighs no more than one
  that took twice too long.
- **It knows how far it is off.** Budgets are cut by the second largest ratio of what others waited
  to predicted times of the last steps. They follow a device that slows down within two steps,
  before the prices do.

Prices are learnt from `StepOutput.device_ns`: from the step's own beginning in the device's stream
to its end. With two steps in flight that is neither the time between submit and collect, which
includes the step before, nor the time between results, which includes a host that comes late. That
last one is what others wait, though, so the cut of budgets is learnt from it.
"""

from __future__ import annotations

from collections import deque
from statistics import median, median_low
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rocmforge.engine.schedule.chunks import Chunk

Float64Array = npt.NDArray[np.float64]

TILES: Final = (64, 128, 256)
"""Tokens that matrix products may compute together, in the time of one of them."""
_USUAL: Final = np.array([32.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1 / 16384, 1 / 2048])
"""What each price usually is, in tokens: a pair is 1/16384 of a token, and so on."""
_FIRST: Final = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
"""How much of that is believed before anything is measured: nothing of whole tiles."""
_TRUST: Final = np.array([0.01, 0.01, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01])
"""In that, in steps: so little that a few of another kind correct it.

More of it where nothing is believed: two or three steps may look like a staircase.
"""
_KEPT: Final = 8  # steps of each kind
_KINDS: Final = 40  # of those seen last
_FITS: Final = 16  # that are made while as many steps are measured as are kept
_HALF_LIFE: Final = 512  # steps after which a measurement counts half
_DRIFT: Final = 0.2  # of the median ratio from 1, from which on the clock is said to have changed
_OUTLIER: Final = 0.1  # relative error from which on a measurement counts less
_ROUNDS: Final = 3  # of weighing measurements by their errors
_RATIOS: Final = 16  # of measured to predicted times
_LARGEST_RATIO: Final = 4.0
_LATE: Final = 1.1
"""Times a step's own time that others may wait for it and be believed.

A host that comes later than that will not be in time for smaller steps.
"""
_FIRST_TOKENS: Final = 64  # of a step before any was measured
_GROWTH: Final = 2  # of a step's tokens over the largest that was measured


class StepWork(NamedTuple):
    """The amount of work in a step, as far as it takes time."""

    tokens: int = 0
    rows: int = 0  # of logits
    pairs: float = 0.0  # of a prompt's token and a position that it attends to
    context: int = 0  # positions that decodes read

    @classmethod
    def of(cls, chunks: list[Chunk]) -> StepWork:
        """Adds up the chunks of a step."""
        tokens = rows = context = 0
        pairs = 0.0
        for chunk in chunks:
            tokens += chunk.num_tokens
            rows += chunk.num_rows
            if chunk.is_decode:
                context += chunk.start + chunk.num_tokens
            else:
                pairs += pairs_of(chunk.start, chunk.num_tokens)
        return cls(tokens, rows, pairs, context)


def pairs_of(start: int, count: int) -> float:
    """Returns the positions that `count` tokens of a prompt from `start` on attend to, in all."""
    return count * (start + (count + 1) / 2)


def _in_tiles(tokens: int) -> tuple[int, ...]:
    """Returns how many tokens so many are, and in whole tiles of each size."""
    return (tokens, *(-(-tokens // tile) * tile for tile in TILES))


class Prices(NamedTuple):
    """Nanoseconds of each part of a step's work."""

    fixed: float
    token: float
    small_tile: float  # of each token of a whole tile, for each of `TILES`
    middle_tile: float
    large_tile: float
    row: float
    pair: float
    context: float

    @property
    def filled(self) -> float:
        """Nanoseconds of a token where all tiles are full."""
        return self.token + self.small_tile + self.middle_tile + self.large_tile

    def of_tokens(self, tokens: int) -> float:
        """Returns the nanoseconds of all tokens of a step, whatever they attend to."""
        small, middle, large = TILES
        down = -tokens  # which // rounds away from 0; a loop would take several times as long
        return (
            self.token * tokens
            - self.small_tile * (down // small * small)
            - self.middle_tile * (down // middle * middle)
            - self.large_tile * (down // large * large)
        )

    def of(self, work: StepWork) -> float:
        """Returns the nanoseconds of a step."""
        return (
            self.fixed
            + self.of_tokens(work.tokens)
            + self.row * work.rows
            + self.pair * work.pairs
            + self.context * work.context
        )

    def scaled(self, factor: float) -> Prices:
        """Returns prices that are all so much higher."""
        return Prices(*(price * factor for price in self))


class _Measured(NamedTuple):
    number: int  # of the step
    work: StepWork
    time_ns: float


class StepCosts:
    """Prices of steps with prompts, and how well they predict."""

    def __init__(self) -> None:
        self._measured: dict[tuple[int, int, int], deque[_Measured]] = {}  # by kind
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        self._waits: deque[float] = deque(maxlen=_RATIOS)  # as ratios to predicted times, too
        self._prices: Prices | None = None  # None: to be computed
        self._not_fitted = 0  # steps
        self._number = 0

    def observe(self, work: StepWork, time_ns: int, wait_ns: int = 0) -> float:
        """Learns what a step with prompts took; returns the nanoseconds predicted, 0 if none.

        Args:
            work: What was in it.
            time_ns: What the device took.
            wait_ns: From the results before to its own, if others waited for their next token.
        """
        if time_ns <= 0:
            return 0.0
        prices = self.prices
        predicted = 0.0 if prices is None else prices.of(work)
        if predicted:
            self._ratios.append(time_ns / predicted)
            self._waits.append(min(max(wait_ns, time_ns), _LATE * time_ns) / predicted)
        self._number += 1
        kind = (
            work.tokens.bit_length(),
            (int(work.pairs) // work.tokens).bit_length(),
            work.context.bit_length(),
        )
        kept = self._measured.pop(kind, None) or deque(maxlen=_KEPT)
        kept.append(_Measured(self._number, work, float(time_ns)))
        self._measured[kind] = kept  # the last of all
        if len(self._measured) > _KINDS:
            del self._measured[next(iter(self._measured))]
        self._not_fitted += 1
        if self._not_fitted * _FITS >= sum(map(len, self._measured.values())):
            self._prices = None
        self._follow_clock()
        return predicted

    def prepare(self) -> None:
        """Computes prices, if they are to be: 1 to 2 ms, which nobody should wait for later."""
        if self._prices is None and self._measured:
            self._not_fitted = 0
            self._prices = _fit([each for kept in self._measured.values() for each in kept])

    @property
    def prices(self) -> Prices | None:
        """The prices that explain best what was measured; None if nothing was."""
        self.prepare()
        return self._prices

    @property
    def margin(self) -> float:
        """Times by which others may wait longer for a step than it was predicted to take."""
        if not self._waits:
            return 1.0
        ratios = sorted(self._waits)
        large = ratios[-1] if len(ratios) < _RATIOS // 2 else ratios[-2]
        return min(max(large, 1.0), _LARGEST_RATIO)

    @property
    def most_tokens(self) -> int:
        """Tokens of a step up to which predictions are believed."""
        steps = [each.work.tokens for kept in self._measured.values() for each in kept]
        return max(_FIRST_TOKENS, _GROWTH * max(steps, default=0))

    def _follow_clock(self) -> None:
        """Scales what was measured before the last steps, if all of those took so much longer."""
        if len(self._ratios) < _RATIOS // 2:
            return
        factor = median_low([*self._ratios][-_RATIOS // 2 :])
        if abs(factor - 1) <= _DRIFT:
            return
        before = self._number - _RATIOS // 2
        for kept in self._measured.values():
            for i, each in enumerate(kept):
                if each.number <= before:
                    kept[i] = each._replace(time_ns=each.time_ns * factor)
        self._ratios.clear()
        self._waits.clear()
        self._prices = None


def _fit(measured: list[_Measured]) -> Prices:
    """Returns prices that are least wrong, relative to what was measured."""
    rows = [(1.0, *_in_tiles(each.work.tokens), *each.work[1:]) for each in measured]
    work = np.array(rows) * _USUAL  # [N, prices], in tokens
    times = np.array([each.time_ns for each in measured])
    numbers = np.array([each.number for each in measured])
    token_ns = median((times / (work @ _FIRST)).tolist())  # np.median first imports for 30 ms
    shares = token_ns * work / times[:, None]  # [N, prices]; a row adds up to 1 if all is usual
    weights: Float64Array = 0.5 ** ((numbers.max() - numbers) / _HALF_LIFE)
    errors = np.zeros(len(measured))
    factors = _FIRST
    for _ in range(_ROUNDS):
        factors = _non_negative(shares, weights / np.maximum(1.0, np.abs(errors) / _OUTLIER))
        errors = shares @ factors - 1.0
    return Prices(*(token_ns * factors * _USUAL).tolist())


def _non_negative(shares: Float64Array, weights: Float64Array) -> Float64Array:
    """Solves shares @ factors = 1 in the least squares, near `_FIRST` where that leaves a choice.

    A factor that would be negative is 0, and the others are solved again.
    """
    size = shares.shape[1]
    normal = shares.T @ (weights[:, None] * shares) + np.diag(_TRUST)
    target = shares.T @ weights + _TRUST * _FIRST
    factors = np.zeros(size)
    left = np.ones(size, bool)
    while left.any():
        factors[left] = np.linalg.solve(normal[np.ix_(left, left)], target[left])
        if factors[left].min() >= 0:
            break
        left &= factors > 0
        factors[~left] = 0.0
    return factors
