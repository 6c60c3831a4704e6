"""Judges the differences between device and reference, place after place."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from rocmforge.engine.proof.bounds import Bounds
from rocmforge.engine.proof.comparing import Difference

WINDOW: Final = 200
"""Places that are judged together: rounding differs from place to place, a mistake adds up."""
LEAST: Final = 100
"""Places from which on they are judged."""
_SHARE: Final = 0.25
_LEAST_EXPECTED: Final = 1e-4
"""What the order of additions alone explains, in float32."""


class Watch:
    """The differences of the latest places.

    Judged is the lower quartile of relative errors. Where two experts are near a tie, rounding
    alone chooses another one, and all places of this sequence behind it are far off: that may be
    most of the latest places, but hardly three in four. A mistake is everywhere.

    Args:
        bounds: what is too much.
        least: places from which on they are judged.
    """

    def __init__(self, bounds: Bounds, least: int = LEAST) -> None:
        self._bounds = bounds
        self._least = least
        self._errors: deque[float] = deque(maxlen=WINDOW)
        self._by_rounding: deque[float] = deque(maxlen=WINDOW)

    @property
    def error(self) -> float:
        """The lower quartile of the device's errors at the latest places; 0 without any."""
        return _quartile(self._errors)

    @property
    def expected(self) -> float:
        """The lower quartile of what rounding alone explains, at the same places."""
        return max(_quartile(self._by_rounding), _LEAST_EXPECTED)

    def take(self, found: Sequence[Difference], by_rounding: Sequence[Difference]) -> str | None:
        """Takes in places, as device and rounding reference have them; says what is wrong."""
        alarm = None
        for device, rounded in zip(found, by_rounding, strict=True):
            if not math.isfinite(device.kl):
                alarm = alarm or "the device's numbers are not finite where the reference's are"
                continue
            self._errors.append(device.error)
            self._by_rounding.append(rounded.error)
            if device.kl > self._bounds.kl + rounded.kl:
                alarm = alarm or (
                    f"a KL divergence of {device.kl:.3g} nats at one place, more than "
                    f"{self._bounds.kl:g}"
                )
            limit = self._bounds.tolerance * self.expected
            if len(self._errors) >= self._least and self.error > limit:
                alarm = alarm or (
                    f"an error of {self.error:.3g} over {len(self._errors)} tokens, more than "
                    f"{limit:.3g}, which is {self._bounds.tolerance:g} times what rounding explains"
                )
        return alarm


def _quartile(errors: deque[float]) -> float:
    return float(np.quantile(np.array(errors), _SHARE)) if errors else 0.0
