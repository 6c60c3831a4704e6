"""How much of a difference is taken for rounding."""

from __future__ import annotations

from typing import Final

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.checkpoint.cache_types import SCALED_CACHES
from rocmforge.engine.ipc.message import Message

_KL_BOUND: Final = 0.5
"""Nats at one place: more than was ever seen of a device that computes right."""
_TOLERANCE: Final = 3.0
_INT8_TOLERANCE: Final = 2.0
"""Rounding to int8 outweighs what else a device rounds: it explains nearly all of the error."""


class Bounds(Message, frozen=True):
    """Limits, beyond which there is an alarm."""

    tolerance: float  # times the error that rounding explains, over the latest tokens
    kl: float = _KL_BOUND


def bounds_for(runner: RunnerInfo, tolerance: float | None) -> Bounds:
    """Returns the operator's bounds, or those that were measured to fit such a device."""
    if tolerance is None:
        is_int8 = runner.kv_dtype in SCALED_CACHES or runner.activation_bits == 8
        tolerance = _INT8_TOLERANCE if is_int8 else _TOLERANCE
    return Bounds(tolerance=tolerance)
