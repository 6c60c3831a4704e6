"""An event loop whose clock jumps: what would take an hour takes a moment, and hangs are errors."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(AssertionError):
    """Everybody waits, and nothing can happen any more."""


class _Selector(selectors.SelectSelector):
    """Turns the time that the loop would sleep into time that has passed."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready at once."""
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Deadlock("all tasks wait")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs tasks only: no sockets, threads or processes."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._virtual.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end.

    Raises:
        Deadlock: it never would end.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
