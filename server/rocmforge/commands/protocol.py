"""uvicorn's HTTP/1.1 protocol, with a bound on how long a client may take for its headers."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def bounded_protocol(headers_timeout_s: float) -> type[asyncio.Protocol]:
    """The protocol class for `uvicorn.Config.http`.

    uvicorn bounds the pause between two requests of a connection, but neither the wait for the
    first nor the time that headers take. A few thousand such connections would use up the
    process's file descriptors ("slowloris").
    """

    class BoundedProtocol(HttpToolsProtocol):
        """Closes a connection whose headers do not come in time."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._expect_headers()

        def on_headers_complete(self) -> None:
            self._expect_nothing()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_nothing()
            super().connection_lost(exc)

        def _expect_headers(self) -> None:
            self._expect_nothing()
            self._deadline = self.loop.call_later(headers_timeout_s, self.transport.close)

        def _expect_nothing(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return BoundedProtocol
