"""Compares what two backends find probable at one place of a text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from rocmforge.engine.ipc.params import TokenLogprob

WANTED_TOP: Final = 256
"""Tokens that are asked of the reference, so that those which the device names are among them."""
_SMALLEST: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Difference:
    """One place, as the reference and as a device compute it."""

    kl: float  # nats, of the reference relative to the device; infinite where one has no numbers
    agrees: bool  # on the most probable token
    worst: float  # nats, the largest difference of a log-probability
    error: float = math.inf  # relative: see `differ`


def differ(wanted: TokenLogprob, got: TokenLogprob) -> Difference:
    """Compares a place; tokens beyond those that the device names are taken together.

    The relative error is the root of the mean square of the differences of log-probabilities, over
    that of the reference's log-probabilities, in both less their mean. A logit that is wrong by 1%
    of what logits spread over is wrong by 0.01, however sure the model is.

    Args:
        wanted: the reference's, with `WANTED_TOP` tokens. One that is not among them counts with
            the least of these log-probabilities.
        got: the device's.
    """
    if not (wanted.top and got.top and all(math.isfinite(each) for _, each in got.top)):
        return Difference(kl=math.inf, agrees=False, worst=math.inf)
    known, least = dict(wanted.top), wanted.top[-1][1]
    theirs = np.array([known.get(token, least) for token, _ in got.top])
    ours = np.array([each for _, each in got.top])
    p, q = (np.maximum(_with_rest(each), _SMALLEST) for each in (theirs, ours))
    away = ours - theirs
    return Difference(
        kl=max(0.0, float((p * np.log(p / q)).sum())),
        agrees=wanted.top[0][0] == got.top[0][0],
        worst=float(np.abs(away).max()),
        error=float(away.std() / max(theirs.std(), _SMALLEST)),
    )


def restricted(found: TokenLogprob, names: TokenLogprob) -> TokenLogprob:
    """Returns what one found of the tokens that the other names; the least stands for others."""
    known, least = dict(found.top), found.top[-1][1] if found.top else math.nan
    top = tuple((token, known.get(token, least)) for token, _ in names.top)
    return TokenLogprob(token_id=found.token_id, logprob=found.logprob, top=top)


def _with_rest(
    logprobs: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns the probabilities, and behind them what is left of 1."""
    probabilities = np.exp(logprobs)
    return np.append(probabilities, 1.0 - probabilities.sum())
