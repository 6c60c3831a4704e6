"""Keeps what goes wrong in one sequence's constraint away from the other sequences of its steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from rocmforge.backend.arrays import Int32Array, UInt32Array
from rocmforge.engine.constraint.constraint import Constraint

T = TypeVar("T")

logger = logging.getLogger(__name__)


class GuardedConstraint:
    """A constraint that never raises. After an exception it allows nothing, and says why.

    Args:
        constraint: raises where it, or the library behind it, has a mistake.
    """

    def __init__(self, constraint: Constraint) -> None:
        self.num_words = constraint.num_words
        self._constraint = constraint
        self._failure = ""

    def fill(self, mask: UInt32Array) -> None:
        """Fills as `Constraint.fill`; with nothing allowed after a failure."""
        self._call(lambda: self._constraint.fill(mask), None)
        if self._failure:
            mask[:] = 0

    def fill_ahead(self, masks: UInt32Array, tokens: Int32Array) -> None:
        """Fills as `Constraint.fill_ahead`; with nothing allowed after a failure."""
        self._call(lambda: self._constraint.fill_ahead(masks, tokens), None)
        if self._failure:
            masks[:] = 0

    def count_allowed(self, tokens: Int32Array) -> int:
        """Counts as `Constraint.count_allowed`."""
        return self._call(lambda: self._constraint.count_allowed(tokens), 0)

    def advance(self, token: int) -> bool:
        """Takes the next token; False if that is not possible, and `error` says why."""
        return self._call(lambda: self._constraint.advance(token), False)

    @property
    def error(self) -> str:
        """The error message."""
        return self._failure or self._constraint.error

    def _call(self, call: Callable[[], T], otherwise: T) -> T:
        if self._failure:
            return otherwise
        try:
            return call()
        except Exception as error:
            logger.exception("the constraint of a sequence failed")
            self._failure = f"{type(error).__name__}: {error}"
            return otherwise
