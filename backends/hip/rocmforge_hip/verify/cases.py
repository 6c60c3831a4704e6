"""A check of one operation, and how errors are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.tensor import Tensor
from rocmforge_hip.verify.workbench import Recipe, Workbench

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """One operation on one kind of input; `measure` returns the error that `limit` bounds."""

    op: str
    name: str
    limit: float
    measure: Callable[[Workbench], float]


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that share a model."""

    recipe: Recipe
    cases: tuple[Case, ...]


def values_of(tensor: Tensor | None) -> Float64:
    """Returns the values of a weight that the model has."""
    assert tensor is not None
    return tensor.to_float32().astype(np.float64)


def error(got: Array, want: Array, magnitude: Array | float | None = None) -> float:
    """Returns the largest difference, relative to `magnitude`, or else to the largest wanted value.

    What is not finite counts as infinitely wrong, as does any difference relative to 0.
    """
    assert got.shape == want.shape, (got.shape, want.shape)
    if not (np.isfinite(got).all() and np.isfinite(want).all()):
        return float("inf")
    scale = np.abs(want).max() if magnitude is None else magnitude
    difference = np.abs(got - want)
    with np.errstate(divide="ignore"):
        np.divide(difference, scale, out=difference, where=difference > 0)
    return float(difference.max())
