"""uvicorn's HTTP/1.1 protocol, with bounds on the time and size of headers."""

from __future__ import annotations

import asyncio
import re
import socket
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rocmforge.api.http.errors import answer_for
from rocmforge.api.metrics.request_log import log_refusal
from rocmforge.errors import HeadersTooLarge, InvalidParameter, RequestError

MAX_HEADER_BYTES: Final = 64 * 1024

_H2C: Final = re.compile(rb"\r\nupgrade(?=:[ \t]*h2c[ \t]*(?:\r\n|$))", re.IGNORECASE)
_IGNORED: Final = b"\r\nignored"  # as long: nothing that is counted in bytes may move
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_POLL_S: Final = 0.05
_TCP_CLOSE: Final = 7  # of the kernel's states, in the first byte of TCP_INFO


def bounded_protocol(headers_timeout_s: float) -> type[asyncio.Protocol]:
    """Makes the protocol class for `uvicorn.Config.http`.

    uvicorn bounds the pause between two requests of a connection, but neither the wait for the
    first nor the time that headers take. A few thousand such connections would use up the
    process's file descriptors ("slowloris"). Nor does it bound how large they may be, or the wait
    for the rest of a body that was answered early, as one that is too large. It adds the trailers
    behind a chunked body to the headers of the request that runs, however many there are.
    """

    class BoundedProtocol(HttpToolsProtocol):
        """Refuses headers that do not come in time, are too large or contradict themselves."""

        _deadline: asyncio.TimerHandle | None = None  # while headers are expected
        _rest: asyncio.TimerHandle | None = None  # while a body is expected that nobody wants
        _watch: asyncio.TimerHandle | None = None  # while a client waits that sends no more
        _unused = 0  # bytes since the last that were of a body, or ended the headers
        _has_headers = False  # of the message that comes in: what follows is its body
        _refusal: RequestError | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            if self.cycle is None or self.cycle.response_complete:
                data = _without_h2c(data)
            self._unused += len(data)
            super().data_received(data)
            if self._unused > MAX_HEADER_BYTES:
                self._refusal = HeadersTooLarge(limit_bytes=MAX_HEADER_BYTES)
                self.send_400_response(self._refusal.message)

        def on_message_begin(self) -> None:
            self._has_headers = False
            super().on_message_begin()
            self._expect_headers()

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._has_headers:  # else it is a trailer; RFC 9110, 6.5.1: may be discarded
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._expect_nothing()
            self._unused = 0
            self._refusal = _refusal(self.url, self.headers, self.parser.get_http_version())
            if self._refusal is not None:
                raise self._refusal  # stops the parser; uvicorn calls `send_400_response`
            self._has_headers = True
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._unused = 0
            super().on_body(body)

        def on_response_complete(self) -> None:
            if self.cycle is not None and self.cycle.more_body:
                self._rest = self.loop.call_later(headers_timeout_s, self.transport.close)
            super().on_response_complete()

        def on_message_complete(self) -> None:
            self._has_headers = False
            self._unused = 0
            self._forget_rest()
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            """Refuses what came, unless that would end up in the answer of another request."""
            if self.transport.is_closing():
                return
            if self._is_answering():
                self.transport.close()
            elif self._refusal is None:
                super().send_400_response(msg)
            else:
                self._answer(self._refusal)

        def eof_received(self) -> bool | None:  # type: ignore[override] # uvicorn always closes
            """Goes on for a client that sends no more but waits for its answer.

            One that has left altogether looks the same, until something is sent to it: then its
            system says that nobody is there. 100 Continue is what clients ignore; answers that come
            at once need none. With TLS, and once an answer has begun, the client counts as gone.
            """
            cycle = self.cycle
            if cycle is None or cycle.more_body or cycle.response_started or self.scheme == "https":
                return None
            cycle.keep_alive = False
            if not self.pipeline and self.scope["http_version"] == "1.1":
                self._watch = self.loop.call_later(_POLL_S, self._ask_who_is_there)
            return True

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_nothing()
            self._forget_rest()
            if self._watch is not None:
                self._watch.cancel()
            super().connection_lost(exc)

        def _ask_who_is_there(self) -> None:
            if not self.cycle.response_started:
                self.transport.write(_CONTINUE)
                self._watch = self.loop.call_later(0, self._close_if_nobody_is_there)

        def _close_if_nobody_is_there(self) -> None:
            peer = self.transport.get_extra_info("socket")
            if peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
                self.transport.abort()
            elif not self.cycle.response_started:
                self._watch = self.loop.call_later(_POLL_S, self._close_if_nobody_is_there)

        def _is_answering(self) -> bool:
            """Returns whether an answer has begun, or is due before that of what comes in."""
            if self.cycle is None:
                return False
            if self._has_headers:
                return self.cycle.response_started or bool(self.pipeline)
            return not self.cycle.response_complete

        def _answer(self, error: RequestError) -> None:
            answer = answer_for(error)
            log_refusal(
                method=self.parser.get_method().decode(),
                path=getattr(self, "url", b"").decode(errors="replace"),
                status=answer.status,
                code=answer.detail.code,
            )
            head = (
                f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(answer.body)}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + answer.body)
            self.transport.close()

        def _expect_headers(self) -> None:
            self._expect_nothing()
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


def _refusal(url: bytes, headers: list[tuple[bytes, bytes]], version: str) -> RequestError | None:
    """Returns what is wrong with complete headers, if anything.

    A proxy in front may have decided by another of two hosts than we would (RFC 9112, 3.2).
    """
    if len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEADER_BYTES:
        return HeadersTooLarge(limit_bytes=MAX_HEADER_BYTES)
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        return InvalidParameter("A request needs exactly one Host header.", param="host")
    _, is_absolute, rest = url.partition(b"://")
    authority = re.split(rb"[/?#]", rest, maxsplit=1)[0]
    is_foreign = [authority.lower()] != [host.lower() for host in hosts]
    if is_absolute and not url.startswith(b"/") and hosts and is_foreign:
        return InvalidParameter("The request target names another host than Host.", param="host")
    return None


def _without_h2c(data: bytes) -> bytes:
    """Removes the offer to go on in HTTP/2 from what begins with a request.

    A server may ignore it (RFC 9110, 7.8), and Java's HttpClient offers it with each request. But
    uvicorn's parser stops behind such headers, and the body would be lost.
    """
    head, blank, rest = data.partition(b"\r\n\r\n")
    return _H2C.sub(_IGNORED, head) + blank + rest
