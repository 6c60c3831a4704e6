"""The ingress: reads a request once, has a replica answer it, and another if that one fails.

Ray Serve's proxy routes by headers alone: bodies follow later. So the deployment behind the
proxy is this one, which reads the body and calls a replica with it. It also is the one place that
can ask twice: whatever a replica has not begun to answer goes to another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import msgspec
from ray.exceptions import ObjectLostError, RayActorError, WorkerCrashedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from rocmforge.api.http.errors import answer_for
from rocmforge.api.http.sse import frame
from rocmforge.api.messages.errors import anthropic_error, error_event
from rocmforge.api.messages.handlers import PATH as MESSAGES_PATH
from rocmforge.errors import EngineDied, QueueFull, RequestTimeout, RequestTooLarge, RocmForgeError
from rocmforge.ray.messages import Begun, portable
from rocmforge.ray.routing import Hint, read_hint

logger = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

MAX_TRIES: Final = 8
_FAILURES: Final = (RayActorError, WorkerCrashedError, ObjectLostError)
_RESPONSES: Final = "/v1/responses"
_WITH_OPENING: Final = (_RESPONSES, MESSAGES_PATH)
"""Streams that say that they begin before anything has been generated."""
_MOST_HOMES: Final = 10_000
_BUSY_RETRY_S: Final = 5.0
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503


class IngressLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits of requests, as far as the ingress has to know them."""

    max_body_bytes: int
    receive_timeout_s: float
    has_keys: bool  # whether callers are kept apart by their keys


class Forwarder:
    """An ASGI application that has replicas answer. See `Ingress` for its arguments."""

    def __init__(self, replicas: DeploymentHandle[Any], limits: IngressLimits) -> None:
        self._replicas = replicas.options(method_name="answer", stream=True)
        self._limits = limits
        self._homes: OrderedDict[str, str] = OrderedDict()  # responses -> replicas that keep them

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answers one request, or has nothing to do at start and end."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        try:
            body = await self._read(receive)
        except RocmForgeError as error:
            await _refuse(scope, send, error)
            return
        if body is not None:
            await self._answer(scope, body, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Reads the body; None = the client left.

        Raises:
            RequestTimeout, RequestTooLarge: it does not arrive, or too much of it does.
        """
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._limits.receive_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._limits.max_body_bytes:
                        raise RequestTooLarge(limit_bytes=self._limits.max_body_bytes)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise RequestTimeout(
                f"The request did not arrive within {self._limits.receive_timeout_s:g} s."
            ) from None

    async def _answer(self, scope: Any, body: bytes, send: Send) -> None:
        """Has replicas answer, until one does; passes on what it says as it says it."""
        hint = self._hint(scope, body)
        for number in range(MAX_TRIES):
            outgoing = _Outgoing(scope, send)
            answer = self._replicas.remote(hint, portable(scope), body)
            try:
                async with aclosing(_parts(answer)) as parts:
                    async for part in parts:
                        if isinstance(part, bytes):
                            await outgoing.add(part)
                        elif number < MAX_TRIES - 1 and _is_worth_another(part, hint, scope):
                            tried = (*hint.tried, part.replica)
                            hint = msgspec.structs.replace(hint, tried=tried, home=None)
                            break
                        else:
                            self._remember(scope, part)
                            outgoing.begin(part)
                    else:
                        await outgoing.end()
                        return
            except BackPressureError as error:
                logger.info("a request found no place: %s", error)
                full = QueueFull("All replicas are busy.", retry_after_s=_BUSY_RETRY_S)
                await _refuse(scope, send, full)
                return
            except (*_FAILURES, DeploymentUnavailableError) as error:
                logger.warning("a replica failed a request of %s: %s", scope["path"], error)
                if outgoing.has_begun:
                    await outgoing.end_early()
                    return
        await _refuse(scope, send, EngineDied("No replica could answer. Try again later."))

    def _hint(self, scope: Any, body: bytes) -> Hint:
        _, _, named = scope["path"].partition(_RESPONSES + "/")
        hint = Hint(response=named.partition("/")[0])
        if scope["method"] == "POST" and not named:
            hint = read_hint(body, _identity(scope) if self._limits.has_keys else b"")
        return msgspec.structs.replace(hint, home=self._homes.get(hint.response or ""))

    def _remember(self, scope: Any, begun: Begun) -> None:
        if scope["path"] == _RESPONSES and scope["method"] == "POST":
            self._homes[begun.header(b"x-request-id").decode()] = begun.replica
            if len(self._homes) > _MOST_HOMES:
                self._homes.popitem(last=False)


class Ingress:
    """The deployment behind Ray Serve's proxy; made by Ray Serve.

    Args:
        replicas: the handle of their deployment.
        limits: of requests.
    """

    def __init__(self, replicas: DeploymentHandle[Any], limits: IngressLimits) -> None:
        self._application = Forwarder(replicas, limits)

    def __serve_build_asgi_app__(self) -> Forwarder:
        """Returns the application that is to be served."""
        return self._application


class _Outgoing:
    """One attempt's answer on its way to the client, held back until there is some of it.

    Headers, and the events that only say that something will come, wait for what follows them: up
    to then, another replica can answer instead, and nobody notices.
    """

    def __init__(self, scope: Any, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._held: list[dict[str, Any]] = []
        self._num_held = 1
        self._begun: Begun | None = None
        self.has_begun = False

    @property
    def _is_stream(self) -> bool:
        assert self._begun is not None, "parts follow a beginning"
        return self._begun.header(b"content-type").startswith(b"text/event-stream")

    def begin(self, begun: Begun) -> None:
        """Takes status and headers."""
        self._begun = begun
        if self._is_stream and self._scope["path"] in _WITH_OPENING:
            self._num_held = 2
        # The proxy adds the id by which it, Ray Serve's logs and the replica's know the request.
        headers = [header for header in begun.headers if header[0].lower() != b"x-request-id"]
        start = {"type": "http.response.start", "status": begun.status, "headers": headers}
        self._held.append(start)

    async def add(self, part: bytes) -> None:
        """Takes a part of the body."""
        self._held.append(_body(part, more=True))
        if self.has_begun or len(self._held) > self._num_held:
            await self._flush()

    async def end(self) -> None:
        """Sends the rest."""
        self._held.append(_body(b"", more=False))
        await self._flush()

    async def end_early(self) -> None:
        """Ends an answer whose replica died: a stream says so in its last event.

        Raises:
            EngineDied: it is no stream, and all that can be done is to break the connection off.
        """
        died = EngineDied("The replica that was answering has died.")
        if not self._is_stream:
            raise died
        is_messages = self._scope["path"].startswith(MESSAGES_PATH)
        event = error_event(died) if is_messages else frame(answer_for(died).body)
        await self._send(_body(event, more=False))

    async def _flush(self) -> None:
        self.has_begun = True
        held, self._held = self._held, []
        for message in held:
            await self._send(message)


async def _parts(answer: Any) -> Any:
    """Yields what a replica says; it stops when nobody listens any more."""
    try:
        async for part in answer:
            yield part
    finally:
        answer.cancel()


async def _live(receive: Receive, send: Send) -> None:
    """Has nothing to start or to stop."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


def _identity(scope: Any) -> bytes:
    wanted = (b"authorization", b"x-api-key")
    return b"\0".join(value for name, value in scope["headers"] if name.lower() in wanted)


def _body(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _refuse(scope: Any, send: Send, error: RocmForgeError) -> None:
    """Answers with an error, worded as the API does."""
    answer = answer_for(error)
    body = answer.body
    if scope["path"].startswith(MESSAGES_PATH):
        body = msgspec.json.encode(anthropic_error(error, answer))
    headers = {"content-type": "application/json", **answer.headers}
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
    await send(_body(body, more=False))


def _is_worth_another(begun: Begun, hint: Hint, scope: Any) -> bool:
    """Returns whether another replica may do what this one cannot: it knows, or is ready."""
    if begun.replica in hint.tried:
        return False
    is_elsewhere = begun.status == _NOT_FOUND and scope["path"].startswith(_RESPONSES)
    return begun.status == _UNAVAILABLE or is_elsewhere
