"""Server-sent events: framing, and the response that carries them.

The path of a token is short on purpose. The constant parts of a chunk are encoded once for each
choice; a token costs one JSON string, and all chunks of one wake-up leave in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import msgspec
from litestar.types import Receive, Scope, Send
from litestar.types.asgi_types import HTTPSendMessage

DONE = b"data: [DONE]\n\n"

EVENT_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would hold events back
}

_KEEP_ALIVE = b": keep-alive\n\n"
# Line breaks to Python's `str.splitlines`, and so to `httpx.Response.iter_lines` and clients built
# on either, but neither to the format of events nor to JSON, whose encoders let them pass. Each
# occurs in UTF-8 as itself only.
_ESCAPES: Final = tuple(
    (character.encode(), f"\\u{ord(character):04x}".encode()) for character in "\x85\u2028\u2029"
)
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
    """Frames one event of JSON that is already encoded."""
    return b"data: " + _one_line(data) + b"\n\n"


def comment(text: str) -> bytes:
    """Encodes a comment, which clients read and ignore."""
    return b": " + " ".join(text.splitlines()).encode() + b"\n\n"


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
        return self._head + _one_line(msgspec.json.encode(text)) + self._tail


class EventStream:
    """A stream of encoded events, whose source is closed on every way out.

    That includes a client that has left before the first event: a generator that was never
    started runs no `finally`. One task beside that of the request watches the connection: what a
    stream needs to start is what many that start at once wait for.

    Args:
        events: What to send.
        close: Called at the end.
        keep_alive_s: Seconds from one comment that keeps the connection alive to the next.
        headers: Beside those of every stream.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        *,
        close: Callable[[], None],
        keep_alive_s: float,
        headers: dict[str, str],
    ) -> None:
        self._events = events
        self._close = close
        self._keep_alive_s = keep_alive_s
        self._headers = encoded_headers(EVENT_STREAM_HEADERS | headers)
        self._has_left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events, unless the client leaves before the last."""
        streaming = asyncio.current_task()
        assert streaming is not None
        watching: asyncio.Task[None] | None = None
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            watching = asyncio.create_task(self._watch(receive, send, streaming))
            async with aclosing(self._events) as events:
                async for data in events:
                    await send(body_part(data, more=True))
            watching.cancel()
            await send(body_part(b"", more=False))
        except asyncio.CancelledError:
            if not self._has_left or streaming.uncancel():
                raise
        finally:
            if watching is not None:
                watching.cancel()
            self._close()

    async def _watch(self, receive: Receive, send: Send, streaming: asyncio.Task[Any]) -> None:
        """Sends comments, and cancels the stream once the client has left."""
        while True:
            try:
                async with asyncio.timeout(self._keep_alive_s):
                    while (await receive())["type"] != "http.disconnect":
                        pass
            except TimeoutError:
                await send(body_part(_KEEP_ALIVE, more=True))
            else:
                self._has_left = True
                streaming.cancel()
                return


def _one_line(encoded: bytes) -> bytes:
    """Escapes in JSON what some clients take for the end of a line."""
    if not encoded.isascii():
        for character, escape in _ESCAPES:
            encoded = encoded.replace(character, escape)
    return encoded


def encoded_headers(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """Encodes headers as the HTTP server takes them."""
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def body_part(body: bytes, *, more: bool) -> HTTPSendMessage:
    """Makes the message that sends a part of a body."""
    return {"type": "http.response.body", "body": body, "more_body": more}
