"""The events of a response that runs in the background, for streams that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class EventLog:
    """Encoded events in order; read by any number of streams while it grows.

    Mutable; used on the event loop only. Whoever writes it must close it.
    """

    def __init__(self) -> None:
        self.size = 0  # bytes
        self._events: list[bytes] = []
        self._is_closed = False
        self._news = asyncio.Event()

    def append(self, encoded: bytes) -> None:
        """Takes one or more events, each with the empty line that ends it."""
        self._events += [event + b"\n\n" for event in encoded.split(b"\n\n")[:-1]]
        self.size += len(encoded)
        self._wake()

    def close(self) -> None:
        """Closes the log: nothing more comes. Idempotent."""
        self._is_closed = True
        self._wake()

    async def read(self, start: int) -> AsyncGenerator[bytes]:
        """Yields events from number `start` on, also those that are still to come."""
        while True:
            news = self._news
            if some := b"".join(self._events[start:]):
                start = len(self._events)
                yield some
            elif self._is_closed:
                return
            else:
                await news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
