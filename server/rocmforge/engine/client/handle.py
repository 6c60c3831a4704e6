"""The handle of one request: its events while they come in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rocmforge.engine.ipc.params import FinishReason, TokenEvent


class GenerationHandle:
    """The events of one request, for one reader. Made by `AsyncEngine.submit`.

    Attributes:
        request_id: the id in its events.
        key: index of the API key it came with.
        began: loop time of its submission.
        expires: ends it when its deadline has passed; None = it has none.
        resumed: how many times it was handed to another engine process.
    """

    def __init__(self, request_id: int, on_close: Callable[[int], None], key: int) -> None:
        self.request_id = request_id
        self.key = key
        self.began = asyncio.get_running_loop().time()
        self.expires: asyncio.TimerHandle | None = None
        self.resumed = 0
        self._on_close = on_close
        self._events: list[TokenEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self._is_finished = False
        self._unread_since: float | None = None

    async def next(self) -> tuple[TokenEvent, ...]:
        """Returns all events that have come in, at least one; the very last has a finish_reason.

        Always lets other tasks run. Not to be called again after the last event.
        """
        if self._events:
            await asyncio.sleep(0)
        else:
            assert not self._is_finished, "the last event has been read"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events = tuple(self._events)
        self._events.clear()
        self._unread_since = None
        return events

    def close(self) -> None:
        """Ends the request, if it has not ended; its blocks are freed before the next step.

        Idempotent. A reader that still waits gets an event that says `cancelled`.
        """
        if not self._is_finished:
            self._on_close(self.request_id)
            self.deliver(
                TokenEvent(request_id=self.request_id, finish_reason=FinishReason.CANCELLED), 0.0
            )

    def stop_clock(self) -> None:
        """Forgets the deadline: the request has ended."""
        if self.expires is not None:
            self.expires.cancel()

    def deliver(self, event: TokenEvent, now: float) -> None:
        """Takes in an event; for the engine client only. `now` is in seconds of its loop."""
        if self._is_finished:
            return
        if not self._events:
            self._unread_since = now
        self._events.append(event)
        self._is_finished = event.finish_reason is not None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def is_stalled(self, now: float, limit_s: float) -> bool:
        """Returns whether events have been unread for longer than `limit_s` seconds."""
        return self._unread_since is not None and now - self._unread_since > limit_s
