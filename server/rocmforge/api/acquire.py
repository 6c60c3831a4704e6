"""The way of a request to the model that it names, which may have to be loaded first.

What the model's file says is known before: a request that it cannot serve is refused at once.
Another one waits without a word if it is plain, and for as long as streams may be silent if it is a
stream. Then the stream begins, says in comments how far loading is, and what goes wrong after that
is its last event: the status has been sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple, cast

from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.generate.prompts import images_of
from rocmforge.api.generate.schema import Message
from rocmforge.api.http.disconnect import ClientLeft, unless_client_leaves
from rocmforge.api.http.errors import answer_for
from rocmforge.api.http.origin import Origin
from rocmforge.api.http.sse import (
    EVENT_STREAM_HEADERS,
    body_part,
    comment,
    encoded_headers,
    frame,
)
from rocmforge.api.images.pictures import Pictures
from rocmforge.api.images.prompt_images import PromptImage
from rocmforge.api.metrics.fleet import FleetMetrics
from rocmforge.api.metrics.request_log import RequestLog
from rocmforge.api.text_workers import TextWorkers
from rocmforge.engine.ipc.params import Share
from rocmforge.fleet.entry import FleetEntry
from rocmforge.fleet.fleet import Fleet
from rocmforge.fleet.model import ServedModel

MODEL: Final = "model"
"""Where a request's state holds the `ServedModel` it has named, once it has."""

OFFLOAD_BYTES: Final = 8 * 1024
"""Bodies from this size on are rendered and tokenised in a worker thread, not on the event loop.

So are small ones that take as long, because they bring a grammar.
"""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def openai_failure(error: Exception) -> bytes:
    """Encodes the last event of a stream that failed before it had anything to say."""
    return frame(answer_for(error).body)


class Models:
    """The models of a server, for one request.

    Args:
        fleet: all of them.
        metrics: theirs.
        request_log: where the request is written down.
        workers: where texts that are large are worked on.
        pictures: reads images.
        request: whose state will say which model it was about.
        keep_alive_s: how long a stream may be silent.
    """

    def __init__(
        self,
        fleet: Fleet,
        metrics: FleetMetrics,
        request_log: RequestLog,
        workers: TextWorkers,
        pictures: Pictures,
        request: Request[Any, Any, Any],
        keep_alive_s: float,
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._request_log = request_log
        self._workers = workers
        self._pictures = pictures
        self._request = request
        self._keep_alive_s = keep_alive_s
        self._origin = Origin.of(request)
        self._loading: FleetEntry | None = None  # what the request waits for

    @property
    def share(self) -> Share:
        """Whose request it is."""
        return self._origin.share

    def find(self, name: str | None) -> ServedModel:
        """Finds the model of that name as it is, loaded or not; raises as `Fleet.find`."""
        model = self._fleet.find(name)
        self._request.state[MODEL] = model
        return model

    async def read_images(
        self, name: str | None, messages: Sequence[Message]
    ) -> tuple[PromptImage, ...]:
        """Reads the images of a conversation for the model of that name.

        There are none if the model takes none: what prepares the request refuses it then.

        Raises:
            InvalidParameter: one of them cannot be had or read.
        """
        images = tuple(images_of(messages))
        model = self.find(name)
        if not images or model.vision is None:
            return ()
        metrics = self._metrics.of(model)
        started = time.monotonic()
        found = await self._pictures.read(images, model.vision, self._origin.share.key)
        metrics.read_images([image.layout.num_rows for image in found], time.monotonic() - started)
        return found

    @asynccontextmanager
    async def acquire(
        self,
        name: str | None,
        prepare: Callable[[ServedModel], T],
        *,
        takes_long: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[tuple[RequestedModel, T]]:
        """Holds the model of that name, loaded, and gives it with the prepared request.

        For a model that is not loaded, the request is prepared twice: before, so that nothing is
        loaded or unloaded for a request that must be refused, and after, as only the loaded model
        knows how large its context is and what its backend can.

        Args:
            name: as the request says it.
            prepare: checks the request; in any thread.
            takes_long: whether `prepare` does, however small the body is.
            timeout_s: how long the request may take, if its body says so.

        Raises:
            RequestError: what `prepare` says.
            CapacityError: not now; see `Fleet.acquire`.
            ClientLeft: nobody waits for the answer any more.
        """
        served = self.find(name)
        if served.entry.is_up:
            await self._fleet.acquire(served.entry)
        else:
            await self.offload(prepare, served, takes_long=takes_long)
            await self._load(served.entry, timeout_s)
        try:
            prepared = await self.offload(prepare, served, takes_long=takes_long)
            model = RequestedModel(
                served=served,
                adapter=served.adapter_called(name),
                origin=self._origin,
                metrics=self._metrics.of(served),
                request_log=self._request_log,
            )
            yield model, prepared
        finally:
            served.entry.leave()

    async def offload(
        self,
        function: Callable[[*Ts], T],
        *args: *Ts,
        takes_long: bool = False,
    ) -> T:
        """Calls `function` here, or in a worker thread if the request's body is large."""
        if not takes_long and len(await self._request.body()) < OFFLOAD_BYTES:
            return function(*args)
        return await self.in_thread(partial(function, *args))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Calls `work` in a worker thread, when it is the turn of the request's key."""
        return await self._workers.run(self._origin.share.key, work)

    async def keep_alive(
        self,
        name: str | None,
        answer: Callable[[], Coroutine[Any, Any, ASGIApp]],
        failure: Callable[[Exception], bytes] = openai_failure,
    ) -> ASGIApp:
        """Returns the stream of `answer`, which begins before its model is loaded if need be.

        Args:
            name: of the model that `answer` acquires.
            answer: makes the stream.
            failure: events of a stream that fails after it has begun like this.

        Raises:
            Exception: what `answer` says in time.
        """
        if self.find(name).entry.is_up:
            return await answer()
        working = asyncio.create_task(answer())
        try:
            while not (working.done() or self._loading):
                await asyncio.wait((working,), timeout=self._keep_alive_s)
        except BaseException:
            await _cancel(working)
            raise
        if working.done():
            return working.result()
        return cast("ASGIApp", _LateStream(self, working, self._keep_alive_s, failure))

    def progress(self) -> str:
        """Tells how far loading is of the model that the request waits for."""
        if self._loading is None:
            return "keep-alive"
        entry, status = self._loading, self._loading.status
        return f"{entry.name} is {entry.state}: {status.stage} {status.progress:.0%}"

    async def load(self, name: str) -> ServedModel:
        """Loads a model, unless it is loaded; raises as `Fleet.acquire`."""
        model = self.find(name)
        await self._load(model.entry)
        model.entry.leave()
        return model

    async def unload(self, name: str) -> ServedModel:
        """Unloads a model, if it is loaded; requests that run get the operator's time to end."""
        model = self.find(name)
        await self._fleet.unload(model.entry)
        return model

    async def _load(self, entry: FleetEntry, timeout_s: float | None = None) -> None:
        """Enters an entry once its model is loaded, unless the client leaves before."""
        await self._request.body()  # watching the connection would swallow it
        left_s = self._origin.seconds_left(timeout_s)
        entering = asyncio.create_task(self._fleet.acquire(entry, left_s))
        self._loading = entry
        try:
            await unless_client_leaves(self._request, asyncio.wait((entering,)))
        except BaseException:
            await _cancel(entering)
            if not entering.cancelled() and entering.exception() is None:
                entry.leave()  # let in all the same
            raise
        finally:
            self._loading = None
        entering.result()


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Ends a task, and waits until it has."""
    task.cancel()
    await asyncio.wait((task,))


class _LateStream:
    """A stream that begins while its model is still being loaded."""

    def __init__(
        self,
        models: Models,
        working: asyncio.Task[ASGIApp],
        keep_alive_s: float,
        failure: Callable[[Exception], bytes],
    ) -> None:
        self._models = models
        self._working = working
        self._keep_alive_s = keep_alive_s
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends comments, and then what the answer itself sends."""
        headers = encoded_headers(EVENT_STREAM_HEADERS)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for text in self._progress():
                await send(body_part(comment(text), more=True))
        finally:
            await _cancel(self._working)
        try:
            app = self._working.result()
        except ClientLeft:
            return
        except Exception as error:
            await send(body_part(self._failure(error), more=False))
            return

        async def send_on(message: Any) -> None:
            if message["type"] != "http.response.start":
                await send(message)

        await app(scope, receive, send_on)

    async def _progress(self) -> AsyncIterator[str]:
        """Yields how far loading is, each time that the stream would be silent for too long."""
        while not self._working.done():
            yield self._models.progress()
            await asyncio.wait((self._working,), timeout=self._keep_alive_s)
