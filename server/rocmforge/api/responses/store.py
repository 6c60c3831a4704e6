"""Responses that clients may come back to. In memory, bounded, and gone with the process."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from rocmforge.api.generate.schema import Message
from rocmforge.api.responses.event_log import EventLog
from rocmforge.api.responses.schema import Response
from rocmforge.errors import ResponseNotFound


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


class ResponseStore:
    """The latest responses by id. Mutable; used on the event loop only.

    Args:
        capacity: how many are kept; the ones that were not used longest go first.
        max_bytes: how large they may be together.
    """

    def __init__(self, capacity: int, max_bytes: int) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._bytes = 0
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()  # latest use last

    def put(self, stored: StoredResponse) -> None:
        """Keeps a response. One that is pushed out while it runs is ended."""
        before = self._stored.pop(stored.response.id, None)
        self._bytes += stored.size - (0 if before is None else before.size)
        self._stored[stored.response.id] = stored
        while len(self._stored) > self._capacity or self._bytes > self._max_bytes:
            _, oldest = self._stored.popitem(last=False)
            self._bytes -= oldest.size
            _end(oldest)

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
        self._bytes -= stored.size
        del self._stored[response_id]

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
        """As `ResponseStore.put`, for this owner."""
        stored.owner = self._owner
        self._store.put(stored)

    def get(self, response_id: str) -> StoredResponse:
        """As `ResponseStore.get`; another owner's response is not found."""
        stored = self._store.get(response_id)
        if stored.owner != self._owner:
            raise ResponseNotFound(response_id)
        return stored

    def cancel(self, response_id: str) -> Response:
        """As `ResponseStore.cancel`."""
        self.get(response_id)
        return self._store.cancel(response_id)

    def delete(self, response_id: str) -> None:
        """As `ResponseStore.delete`."""
        self.get(response_id)
        self._store.delete(response_id)


def _end(stored: StoredResponse) -> None:
    if stored.task is not None:
        stored.task.cancel()
