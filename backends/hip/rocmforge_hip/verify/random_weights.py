"""Random matrices of every stored type, whose codes use every bit."""

from __future__ import annotations

import numpy as np

from rocmforge.checkpoint.formats import FORMATS
from rocmforge.checkpoint.random_rows import random_rows
from rocmforge.checkpoint.tensor import Tensor


def random_tensor(
    rng: np.random.Generator, format: str, name: str, rows: int, columns: int
) -> Tensor:
    """Returns a [rows, columns] matrix of weights of the order of 1, as the format stores it."""
    stored = FORMATS[format]
    return Tensor(name, (rows, columns), stored, random_rows(rng, stored, rows, columns))
