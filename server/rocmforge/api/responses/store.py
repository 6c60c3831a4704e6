"""Responses that clients may come back to. In memory, bounded, and gone with the process."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from rocmforge.api.generate.schema import Message
from rocmforge.api.responses.event_log import EventLog
from rocmforge.api.responses.schema import Response
from rocmforge.errors import InvalidParameter, QueueFull, ResponseNotFound

_RETRY_AFTER_S = 5.0
_SHARE_PER_FREE_SHARE = 3
"""How much a key's running responses may hold for what is left beside all that run: three quarters
of the store for one key that is alone. See `engine/client/live_requests.py`.
"""


@dataclass(slots=True)
class StoredResponse:
    """A response, and what a conversation that goes on from it has to repeat."""

    response: Response
    conversation: list[Message]  # without instructions; once finished, with the answer
    input_items: list[dict[str, Any]]  # of the request itself, as they are listed
    events: EventLog | None = None  # if it was streamed from the background
    task: asyncio.Task[None] | None = None  # while it runs in the background
    owner: str | None = None  # name of the key it was made with; None on a server without keys
    size: int = field(init=False)  # bytes, about

    def __post_init__(self) -> None:
        parts = (self.response, self.conversation, self.input_items)
        self.size = len(msgspec.msgpack.encode(parts))
        if self.events is not None:
            self.size += self.events.size

    @property
    def is_running(self) -> bool:
        """Whether it is still being generated, in the background."""
        return self.response.status == "in_progress"


class ResponseStore:
    """The latest responses by id. Mutable; used on the event loop only.

    Keys share it: when it is full, whoever has the most in it gives up its oldest. Responses that
    still run are never given up.

    Args:
        capacity: how many are kept.
        max_bytes: how large they may be together.
    """

    def __init__(self, capacity: int, max_bytes: int) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._bytes = 0
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()  # latest use last

    def put(self, stored: StoredResponse) -> None:
        """Keeps a response, unless it has ended and others of other keys would have to go for it.

        Raises:
            InvalidParameter: it is still running and larger than all that may be kept.
            QueueFull: it is still running, and its key has as much in here as it may.
        """
        before = self._stored.pop(stored.response.id, None)
        self._bytes += stored.size - (0 if before is None else before.size)
        self._stored[stored.response.id] = stored
        if stored.is_running:
            self._check_running(stored)
        while self._is_over:
            fits = stored.size <= self._max_bytes
            victim = self._victim(stored) if fits else None
            if victim is None:
                self._drop(stored)
                if stored.is_running:
                    raise _full()
                return
            self._drop(victim)

    @property
    def _is_over(self) -> bool:
        return len(self._stored) > self._capacity or self._bytes > self._max_bytes

    def _check_running(self, stored: StoredResponse) -> None:
        """Refuses one more that runs if its key leaves too little to others."""
        if stored.size > self._max_bytes:
            self._drop(stored)
            raise InvalidParameter(
                f"With its tools and history the request has {stored.size} bytes; to run in the "
                f"background it may have {self._max_bytes}.",
                param="background",
            )
        running = [each for each in self._stored.values() if each.is_running]
        own = [each for each in running if each.owner == stored.owner]
        room = self._capacity - len(running), self._max_bytes - sum(each.size for each in running)
        held = len(own), sum(each.size for each in own)
        shares = _SHARE_PER_FREE_SHARE
        if stored.owner is not None and any(
            mine > shares * free for mine, free in zip(held, room, strict=True)
        ):
            self._drop(stored)
            raise _full()

    def _victim(self, newcomer: StoredResponse) -> StoredResponse | None:
        """Returns the oldest ended one of the key with the most, and no less than the newcomer."""
        by_bytes = self._bytes > self._max_bytes
        used: Counter[str | None] = Counter()
        for each in self._stored.values():
            used[each.owner] += each.size if by_bytes else 1
        ended = [
            each
            for each in self._stored.values()
            if not each.is_running
            and each is not newcomer
            and used[each.owner] >= used[newcomer.owner]
        ]
        return max(ended, key=lambda each: used[each.owner], default=None)  # the first of equals

    def _drop(self, stored: StoredResponse) -> None:
        self._bytes -= stored.size
        del self._stored[stored.response.id]

    def get(self, response_id: str) -> StoredResponse:
        """Looks a response up.

        Raises:
            ResponseNotFound: it was never stored, or is not any more.
        """
        stored = self._stored.get(response_id)
        if stored is None:
            raise ResponseNotFound(response_id)
        self._stored.move_to_end(response_id)
        return stored

    def cancel(self, response_id: str) -> Response:
        """Ends a response that runs; one that has ended stays as it is.

        Raises:
            ResponseNotFound: as `get`.
        """
        stored = self.get(response_id)
        if stored.task is not None:
            _end(stored)
            stored.task = None
            stored.response = replace(stored.response, status="cancelled")
        return stored.response

    def delete(self, response_id: str) -> None:
        """Forgets a response, and ends it if it runs.

        Raises:
            ResponseNotFound: as `get`.
        """
        stored = self.get(response_id)
        _end(stored)
        self._drop(stored)

    async def close(self) -> None:
        """Ends everything that runs, and waits until it has."""
        tasks = [stored.task for stored in self._stored.values() if stored.task is not None]
        for stored in self._stored.values():
            _end(stored)
        await asyncio.gather(*tasks, return_exceptions=True)


class OwnResponses:
    """The part of a store that one key made; to others it is not there."""

    def __init__(self, store: ResponseStore, owner: str | None) -> None:
        self._store = store
        self._owner = owner

    def put(self, stored: StoredResponse) -> None:
        """Stores as `ResponseStore.put` does, for this owner."""
        stored.owner = self._owner
        self._store.put(stored)

    def get(self, response_id: str) -> StoredResponse:
        """Returns as `ResponseStore.get` does; another owner's response is not found."""
        stored = self._store.get(response_id)
        if stored.owner != self._owner:
            raise ResponseNotFound(response_id)
        return stored

    def cancel(self, response_id: str) -> Response:
        """Cancels as `ResponseStore.cancel` does."""
        self.get(response_id)
        return self._store.cancel(response_id)

    def delete(self, response_id: str) -> None:
        """Deletes as `ResponseStore.delete` does."""
        self.get(response_id)
        self._store.delete(response_id)


def _full() -> QueueFull:
    return QueueFull(
        "The responses that run in the background have as much as may be stored of them; wait "
        "for some to end, or cancel some.",
        retry_after_s=_RETRY_AFTER_S,
    )


def _end(stored: StoredResponse) -> None:
    if stored.task is not None:
        stored.task.cancel()
