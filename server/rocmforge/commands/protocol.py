"""uvicorn's HTTP/1.1 protocol, with bounds on the time and size of headers."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES: Final = 64 * 1024

_H2C: Final = re.compile(rb"\r\nupgrade(?=:[ \t]*h2c[ \t]*(?:\r\n|$))", re.IGNORECASE)
_IGNORED: Final = b"\r\nignored"  # as long: nothing that is counted in bytes may move


def bounded_protocol(headers_timeout_s: float) -> type[asyncio.Protocol]:
    """Makes the protocol class for `uvicorn.Config.http`.

    uvicorn bounds the pause between two requests of a connection, but neither the wait for the
    first nor the time that headers take. A few thousand such connections would use up the
    process's file descriptors ("slowloris"). Nor does it bound how much they may be, or the wait
    for the rest of a body that was answered early, as one that is too large.
    """

    class BoundedProtocol(HttpToolsProtocol):
        """Closes a connection whose headers do not come in time, or do not end."""

        _deadline: asyncio.TimerHandle | None = None  # while headers are expected
        _received = 0  # bytes since then
        _rest: asyncio.TimerHandle | None = None  # while a body is expected that nobody wants

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            if self.cycle is None or self.cycle.response_complete:
                data = _without_h2c(data)
            super().data_received(data)
            if self._deadline is not None:
                self._received += len(data)
                if self._received > MAX_HEADER_BYTES:
                    self.transport.close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._expect_headers()

        def on_headers_complete(self) -> None:
            self._expect_nothing()
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            if self.cycle is not None and self.cycle.more_body:
                self._rest = self.loop.call_later(headers_timeout_s, self.transport.close)
            super().on_response_complete()

        def on_message_complete(self) -> None:
            self._forget_rest()
            super().on_message_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_nothing()
            self._forget_rest()
            super().connection_lost(exc)

        def _expect_headers(self) -> None:
            self._expect_nothing()
            self._received = 0
            self._deadline = self.loop.call_later(headers_timeout_s, self.transport.close)

        def _forget_rest(self) -> None:
            if self._rest is not None:
                self._rest.cancel()
                self._rest = None

        def _expect_nothing(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return BoundedProtocol


def _without_h2c(data: bytes) -> bytes:
    """Removes the offer to go on in HTTP/2 from what begins with a request.

    A server may ignore it (RFC 9110, 7.8), and Java's HttpClient offers it with each request. But
    uvicorn's parser stops behind such headers, and the body would be lost.
    """
    head, blank, rest = data.partition(b"\r\n\r\n")
    return _H2C.sub(_IGNORED, head) + blank + rest
