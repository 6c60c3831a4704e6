"""What a device has found, in the form in which it is recorded."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from rocmforge.engine.ipc.params import TokenLogprob
from rocmforge.engine.ipc.recorded import TOP, pack


def rows_of(places: Iterable[TokenLogprob]) -> bytes:
    """Rows of places, of which each names `TOP` tokens at most."""
    nothing = (-1, -math.inf)
    tops = [[*place.top, *[nothing] * (TOP - len(place.top))] for place in places]
    table = np.array(tops).reshape(-1, TOP, 2)
    return pack(table[:, :, 0].astype(np.int32), table[:, :, 1].astype(np.float32))
