"""^C as the end of what runs, wherever in the program it arrives."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from rocmforge.errors import RocmForgeError

T = TypeVar("T")


class Interrupted(RocmForgeError):
    """^C has come."""


class Interrupts:
    """Ends what runs when SIGINT comes. Mutable; use it as a context manager in a running loop.

    Python's own way, an exception between any two instructions, can leave a loop that is of no use
    any more. Here the loop takes the signal, so that it ends one awaited thing and nothing else.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[Any] | None = None
        self._has_come = False

    def __enter__(self) -> Self:
        self._loop.add_signal_handler(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns what comes of some work, unless ^C ends it.

        Raises:
            Interrupted: it has come, perhaps when nothing ran.
        """
        self._running = task = self._loop.create_task(work)
        if self._has_come:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if not self._has_come:
                raise
            self._has_come = False
            raise Interrupted("The user has interrupted this.") from None
        finally:
            self._running = None

    def _interrupt(self) -> None:
        self._has_come = True
        if self._running is not None:
            self._running.cancel()
