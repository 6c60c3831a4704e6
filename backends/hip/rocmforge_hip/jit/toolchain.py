"""The protocol that the targets of numba have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

THREADS: Final = 1024
"""Of a block; a power of two."""


class Unavailable(Exception):
    """There is no compiler for the target here."""


class Toolchain(Protocol):
    """A target of numba."""

    @property
    def gpu(self) -> Any:
        """The module that a kernel knows as `gpu`."""
        ...

    def device_function(self, function: Callable[..., Any]) -> Any:
        """Returns what a kernel can call."""
        ...

    def compile(self, kernel: Callable[..., Any], types: list[Any]) -> tuple[str, bytes]:
        """Returns the symbol and code of a kernel with arguments of these numba types."""
        ...
