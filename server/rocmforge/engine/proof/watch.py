"""Judges the differences between device and reference, place after place."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

from rocmforge.engine.proof.bounds import Bounds
from rocmforge.engine.proof.comparing import Difference

WINDOW: Final = 100
"""Places that are judged together: rounding differs from place to place, a mistake adds up."""
_LEAST_EXPECTED: Final = 1e-4
"""What the order of additions alone explains, in float32."""


class Watch:
    """The differences of the latest places.

    Judged is the median of relative errors: where two experts are near a tie, rounding alone
    chooses another one, and such places say nothing.

    Args:
        bounds: what is too much.
        window: places that are judged together.
    """

    def __init__(self, bounds: Bounds, window: int = WINDOW) -> None:
        self._bounds = bounds
        self._window = window
        self._errors: deque[float] = deque(maxlen=window)
        self._by_rounding: deque[float] = deque(maxlen=window)

    @property
    def error(self) -> float:
        """The device's median error over the latest places; 0 without any."""
        return median(self._errors) if self._errors else 0.0

    @property
    def expected(self) -> float:
        """The median error of the reference itself when it rounds as the device does."""
        explained = median(self._by_rounding) if self._by_rounding else 0.0
        return max(explained, _LEAST_EXPECTED)

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
            if len(self._errors) == self._window and self.error > limit:
                alarm = alarm or (
                    f"a median error of {self.error:.3g} over {self._window} tokens, more than "
                    f"{limit:.3g}, which is {self._bounds.tolerance:g} times what rounding explains"
                )
        return alarm
