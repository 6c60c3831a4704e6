"""Waits for tokens: how long most of them are, and a client that adds none of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the value below which this share of them lies; NaN if there are none."""
    return float(np.quantile(values, share)) if values else float("nan")


@contextmanager
def without_collections() -> Iterator[None]:
    """Keeps this process from collecting garbage, which would look like a wait of 40 ms."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
