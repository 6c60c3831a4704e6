"""Threads for work on texts that would hold the event loop up, shared fairly between API keys."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

_THREADS: Final = 4
_THREADS_OF_A_KEY: Final = 2


class TextWorkers:
    """A few threads. Mutable; used on one event loop only.

    No key has all of them, so that another one's first text begins at once; of those that wait, the
    keys take turns.
    """

    def __init__(self, threads: int = _THREADS, threads_of_a_key: int = _THREADS_OF_A_KEY) -> None:
        self._threads = ThreadPoolExecutor(threads, "text")
        self._free = threads
        self._most = threads_of_a_key
        self._held: Counter[int] = Counter()  # threads by key
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}  # whose turn is next is first

    async def run(self, key: int, work: Callable[[], T]) -> T:
        """Returns what `work` returns, called in a thread when it is the turn of `key`.

        Args:
            key: `Share.key` of whoever asked.
            work: goes on, and holds its thread, if nobody waits for it any more.
        """
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        self._give_turns()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given at the same moment
                self._leave(key)
            raise
        working: Future[T] = self._threads.submit(work)
        loop = asyncio.get_running_loop()
        working.add_done_callback(lambda _: loop.call_soon_threadsafe(self._leave, key))
        return await asyncio.wrap_future(working)

    def _leave(self, key: int) -> None:
        self._free += 1
        self._held[key] -= 1
        self._give_turns()

    def _give_turns(self) -> None:
        while self._free and (key := self._next_key()) is not None:
            turns = self._waiting.pop(key)
            turn = turns.popleft()
            if turns:
                self._waiting[key] = turns  # behind the others
            if not turn.cancelled():
                turn.set_result(None)
                self._free -= 1
                self._held[key] += 1

    def _next_key(self) -> int | None:
        return next((key for key in self._waiting if self._held[key] < self._most), None)
