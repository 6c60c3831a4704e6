"""Server-sent events: framing, and the response that carries them.

The path of a token is short on purpose. The constant parts of a chunk are encoded once for each
choice; a token costs one JSON string, and all chunks of one wake-up leave in one write.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"

EVENT_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would hold events back
}

_PLACEHOLDER = "\0"
_ENCODED_PLACEHOLDER = msgspec.json.encode(_PLACEHOLDER)


def event(data: msgspec.Struct) -> bytes:
    """Encodes one event."""
    return frame(msgspec.json.encode(data))


class NamedEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    """Base of the events of one stream that have each a name of their own, their tag."""

    @property
    def type(self) -> str:
        """The name of the event."""
        return str(type(self).__struct_config__.tag)


def named_event(data: NamedEvent) -> bytes:
    """Encodes one event that says what it is outside its data too."""
    return b"event: " + data.type.encode() + b"\n" + event(data)


def frame(data: bytes) -> bytes:
    """Frames one event of JSON that is already encoded (and so holds no line break)."""
    return b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """Encodes a comment, which clients read and ignore."""
    return b": " + text.replace("\n", " ").encode() + b"\n\n"


class TextEvent:
    """Encodes events that differ in one text only."""

    __slots__ = ("_head", "_tail")

    def __init__(self, make: Callable[[str], msgspec.Struct]) -> None:
        """Encodes what `make` returns for a placeholder and cuts it there."""
        encoded = event(make(_PLACEHOLDER))
        assert encoded.count(_ENCODED_PLACEHOLDER) == 1
        self._head, _, self._tail = encoded.partition(_ENCODED_PLACEHOLDER)

    def fill(self, text: str) -> bytes:
        """Returns the event with `text` in it."""
        return self._head + msgspec.json.encode(text) + self._tail


class EventStream(EventSourceResponse):
    """A stream whose source is closed on every way out.

    That includes a client that has left before the first event: a generator that was never
    started runs no `finally`.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        close: Callable[[], None],
        keep_alive_s: float,
        drain_timeout_s: float,
        headers: dict[str, str],
    ) -> None:
        super().__init__(
            events,
            ping=keep_alive_s,
            ping_message_factory=lambda: ServerSentEvent(comment="keep-alive", sep="\n"),
            sep="\n",
            headers=headers,
            # The library ends streams as soon as the server is asked to stop; ours may finish.
            shutdown_grace_period=drain_timeout_s,
        )
        del self.headers["connection"]  # whether it is kept is the HTTP server's business
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
