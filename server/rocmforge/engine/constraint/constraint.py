"""The protocol of whatever limits the tokens that a sequence may draw next."""

from __future__ import annotations

from typing import Protocol

from rocmforge.backend.arrays import Int32Array, UInt32Array


class Constraint(Protocol):
    """The state of one sequence in what it has to follow. Committed tokens alone advance it."""

    @property
    def num_words(self) -> int:
        """Words of a mask, ceil(V / 32)."""
        ...

    def fill(self, mask: UInt32Array) -> None:
        """Sets bit t % 32 of word t // 32 if token t may come next; `mask` is [num_words]."""
        ...

    def fill_ahead(self, masks: UInt32Array, tokens: Int32Array) -> None:
        """Fills a mask for each of these tokens, and one for what follows, [1 + N, num_words].

        The tokens are those that `count_allowed` has counted. The place stays as it is.
        """
        ...

    def count_allowed(self, tokens: Int32Array) -> int:
        """Returns how many of these tokens, from the first on, may certainly come next."""
        ...

    def advance(self, token: int) -> bool:
        """Takes the next token; False if that is not possible, and `error` says why."""
        ...

    @property
    def error(self) -> str:
        """The error message."""
        ...
