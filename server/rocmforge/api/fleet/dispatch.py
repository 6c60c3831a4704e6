"""The way of a request to the model that it names, which may have to be loaded first.

What the model's file says is known before: a request that it cannot serve is refused at once.
Another one waits without a word if it is plain, and for as long as streams may be silent if it is a
stream. Then the stream begins, says in comments how far loading is, and what goes wrong after that
is its last event: the status has been sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send
from litestar.types.asgi_types import HTTPSendMessage

from rocmforge.api.fleet.fleet import Fleet, Member
from rocmforge.api.fleet.slot import ModelSlot
from rocmforge.api.http.disconnect import ClientLeft, unless_client_leaves
from rocmforge.api.http.errors import answer_for
from rocmforge.api.http.origin import Origin
from rocmforge.api.http.sse import EVENT_STREAM_HEADERS, comment, frame
from rocmforge.api.service import OFFLOAD_BYTES, Service

MODEL = "model"
"""Where a request's state holds the `Member` it has named, once it has."""

T = TypeVar("T")


def openai_failure(error: Exception) -> bytes:
    """The last event of a stream that failed before it had anything to say."""
    return frame(answer_for(error).body)


class Dispatch:
    """Models for one request.

    Args:
        fleet: all models.
        request: whose state will say which model it was about.
        keep_alive_s: how long a stream may be silent.
    """

    def __init__(self, fleet: Fleet, request: Request[Any, Any, Any], keep_alive_s: float) -> None:
        self._fleet = fleet
        self._request = request
        self._keep_alive_s = keep_alive_s
        self._origin = Origin.of(request)

    def find(self, name: str | None) -> Service:
        """The model of that name as it is, loaded or not; raises as `Fleet.find`."""
        return self._service(self._find(name), name)

    async def answer(
        self,
        name: str | None,
        plan: Callable[[Service], T],
        respond: Callable[[Service, T], Awaitable[ASGIApp]],
        *,
        takes_long: bool = False,
        timeout_s: float | None = None,
        stream: bool = False,
        failure: Callable[[Exception], bytes] = openai_failure,
    ) -> ASGIApp:
        """What `respond` makes of the model of that name, once it is loaded.

        The model stays loaded until `respond` has returned, and until the sequences that it
        submitted have ended.

        Args:
            name: as the request says it.
            plan: checks the request; in any thread. For a model that is not loaded it is called
                twice: before, so that nothing is loaded or unloaded for a request that must be
                refused, and after, as only the loaded model knows how large its context is and what
                its backend can.
            respond: makes the answer of what `plan` returned.
            takes_long: whether `plan` does, however small the body is.
            timeout_s: how long it may take, if its body says so.
            stream: whether the answer is a stream.
            failure: events of a stream that fails while it waits, or after that in `plan` or
                `respond`.

        Raises:
            RequestError: what `plan` says.
            CapacityError: not now; see `Fleet.acquire`.
            ClientLeft: nobody waits for the answer any more.
        """
        member = self._find(name)
        service, slot = self._service(member, name), member.slot
        size = OFFLOAD_BYTES if takes_long else len(await self._request.body())

        async def finish() -> ASGIApp:
            try:
                return await respond(service, await service.offload(size, plan, service))
            finally:
                slot.leave()

        if slot.is_up:
            await self._fleet.acquire(slot)
            return await finish()
        await service.offload(size, plan, service)
        left_s = self._origin.seconds_left(timeout_s)
        entering = asyncio.create_task(self._fleet.acquire(slot, left_s))
        await self._wait_for(entering, slot, self._keep_alive_s if stream else None)
        if entering.done():
            entering.result()
            return await finish()
        late = _LateStream(
            self._request,
            slot,
            entering,
            finish,
            keep_alive_s=self._keep_alive_s,
            failure=failure,
        )
        return cast("ASGIApp", late)

    async def load(self, name: str) -> Member:
        """Loads a model, unless it is loaded; raises as `Fleet.acquire`."""
        member = self._find(name)
        entering = asyncio.create_task(
            self._fleet.acquire(member.slot, self._origin.seconds_left())
        )
        await self._wait_for(entering, member.slot)
        entering.result()
        member.slot.leave()
        return member

    async def unload(self, name: str) -> Member:
        """Unloads a model, if it is loaded; requests that run get the operator's time to end."""
        member = self._find(name)
        await self._fleet.unload(member.slot)
        return member

    async def _wait_for(
        self, entering: asyncio.Task[None], slot: ModelSlot, patience_s: float | None = None
    ) -> None:
        """Waits as long as the client does; raises ClientLeft."""
        try:
            await self._request.body()  # watching the connection would swallow it
            await unless_client_leaves(self._request, asyncio.wait((entering,), timeout=patience_s))
        except BaseException:
            await _give_up(entering, slot)
            raise

    def _find(self, name: str | None) -> Member:
        member = self._fleet.find(name)
        self._request.state[MODEL] = member
        return member

    def _service(self, member: Member, name: str | None) -> Service:
        service = replace(member.service, origin=self._origin)
        return service if name is None else service.called(name)


async def _give_up(entering: asyncio.Task[None], slot: ModelSlot) -> None:
    """Ends a wait; what has been entered all the same is left."""
    entering.cancel()
    await asyncio.wait((entering,))
    if not entering.cancelled() and entering.exception() is None:
        slot.leave()


class _LateStream:
    """A stream that begins while its model is still being loaded."""

    def __init__(
        self,
        request: Request[Any, Any, Any],
        slot: ModelSlot,
        entering: asyncio.Task[None],
        finish: Callable[[], Awaitable[ASGIApp]],
        *,
        keep_alive_s: float,
        failure: Callable[[Exception], bytes],
    ) -> None:
        self._request = request
        self._slot = slot
        self._entering = entering
        self._finish = finish
        self._keep_alive_s = keep_alive_s
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends comments, and then what the answer itself sends."""
        headers = [(k.encode(), v.encode()) for k, v in EVENT_STREAM_HEADERS.items()]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for text in self._progress():
                await send(_part(comment(text), more=True))
        except ClientLeft:
            await _give_up(self._entering, self._slot)
            return
        except BaseException:
            await _give_up(self._entering, self._slot)
            raise
        try:
            self._entering.result()
            app = await self._finish()
        except Exception as error:
            await send(_part(self._failure(error), more=False))
            return

        async def send_on(message: Any) -> None:
            if message["type"] != "http.response.start":
                await send(message)

        await app(scope, receive, send_on)

    async def _progress(self) -> AsyncIterator[str]:
        """How far loading is, each time that the stream would be silent for too long."""
        while not self._entering.done():
            status = self._slot.status
            yield f"{self._slot.name} is {self._slot.state}: {status.stage} {status.progress:.0%}"
            await unless_client_leaves(
                self._request, asyncio.wait((self._entering,), timeout=self._keep_alive_s)
            )


def _part(body: bytes, *, more: bool) -> HTTPSendMessage:
    return {"type": "http.response.body", "body": body, "more_body": more}
