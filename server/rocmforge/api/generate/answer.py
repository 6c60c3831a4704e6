"""From a running generation to an HTTP answer: a stream of events, or one body at the end."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from litestar import MediaType, Request, Response
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from rocmforge.api.generate.generation import Generation, Piece
from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.schema import Usage
from rocmforge.api.http.disconnect import unless_client_leaves
from rocmforge.api.http.errors import answer_for
from rocmforge.api.http.headers import request_id_headers
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.http.sse import EventStream, frame

T = TypeVar("T")

LARGE_ANSWER: Final = 4096
"""Log-probabilities, or numbers, from which on an answer is made in a worker thread.

They would keep the event loop busy for some milliseconds.
"""


class AnswerHead(msgspec.Struct, frozen=True):
    """The fields that all chunks of an answer have in common."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    @classmethod
    def make(cls, model: RequestedModel, prefix: str) -> AnswerHead:
        """Makes a fresh id that begins with `prefix`, and a creation time for the whole answer."""
        return cls(
            id=f"{prefix}{uuid.uuid4().hex}",
            created=int(model.served.clock()),
            model=model.answers_as,
            system_fingerprint=model.served.fingerprint,
        )


class InThread(Protocol):
    """Calls something in a worker thread (`Models.in_thread`)."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Gives what `work` returns."""
        ...


class Writer(Protocol):
    """The form in which an endpoint family says what a generation yields.

    An answer is either one `body`, or a stream: `opening`, `events` of each piece, and `closing`
    or `failure`.
    """

    head: AnswerHead

    def opening(self) -> bytes:
        """Encodes server-sent events before anything has been generated."""
        return b""

    def events(self, piece: Piece) -> bytes:
        """Encodes server-sent events for one piece."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """Encodes the last events of a stream that ended well."""
        ...

    def failure(self, error: Exception) -> bytes:
        """Encodes the last events of a stream that did not."""
        return frame(answer_for(error).body)

    def body(self, pieces: list[Piece], usage: Usage) -> msgspec.Struct:
        """Encodes the whole answer, from all pieces in order of arrival; in any thread."""
        ...

    def ended(self, body: msgspec.Struct) -> None:
        """Takes note of the whole answer, on the event loop."""
        return


def streamed(generation: Generation, writer: Writer, settings: ApiSettings) -> ASGIApp:
    """Streams what a generation says, and ends it on every way out."""
    events = stream_events(generation, writer)
    return event_stream(events, settings, writer.head.id, close=generation.close)


async def collected(
    request: Request[Any, Any, Any], in_thread: InThread, generation: Generation, writer: Writer
) -> ASGIApp:
    """Makes one body of all that a generation says, once it has ended.

    Raises:
        CapacityError, EngineError: it failed.
        ClientLeft: nobody waits for the answer any more.
    """
    try:
        pieces = await unless_client_leaves(request, collect(generation))
    finally:
        generation.close()
    usage = generation.usage()

    def encode() -> tuple[msgspec.Struct, bytes]:
        body = writer.body(pieces, usage)
        return body, msgspec.json.encode(body)

    if num_logprobs(generation.prepared, pieces) < LARGE_ANSWER:
        body, encoded = encode()
    else:
        body, encoded = await in_thread(encode)
    writer.ended(body)
    return _json_bytes(encoded, writer.head.id)


def num_logprobs(prepared: PreparedRequest, pieces: Sequence[Piece]) -> int:
    """Counts the log-probabilities of the pieces, with top_logprobs, as an answer repeats them."""
    sampling = prepared.sampling
    output = sum(len(piece.logprobs) for piece in pieces) * (1 + sampling.num_logprobs)
    prompts = sum(len(piece.prompt_logprobs) for piece in pieces) * (1 + sampling.prompt_logprobs)
    return output + prompts * prepared.n


def event_stream(
    events: AsyncGenerator[bytes],
    settings: ApiSettings,
    request_id: str,
    *,
    close: Callable[[], None] = lambda: None,
) -> ASGIApp:
    """Makes a stream of encoded events; `close` is called on every way out."""
    return EventStream(
        events,
        close=close,
        keep_alive_s=settings.keep_alive_s,
        headers=request_id_headers(request_id),
    )


async def stream_events(generation: Generation, writer: Writer) -> AsyncGenerator[bytes]:
    """Yields the events of a stream. What fails after the headers becomes the last of them."""
    try:
        if opening := writer.opening():
            yield opening
        async for pieces in generation.batches():
            if pieces:
                yield b"".join([writer.events(piece) for piece in pieces])
        yield writer.closing(generation.usage())
    except Exception as error:
        yield writer.failure(error)
    finally:
        generation.close()


async def collect(generation: Generation) -> list[Piece]:
    """Collects all pieces, in order of arrival."""
    return [piece async for pieces in generation.batches() for piece in pieces]


def json_answer(body: msgspec.Struct, request_id: str) -> ASGIResponse:
    """Makes an answer that a generation gave."""
    return _json_bytes(msgspec.json.encode(body), request_id)


def _json_bytes(encoded: bytes, request_id: str) -> ASGIResponse:
    return ASGIResponse(
        body=encoded,
        media_type=MediaType.JSON,
        headers=request_id_headers(request_id),
    )


def json_response(body: msgspec.Struct) -> Response[bytes]:
    """Makes an answer that needs no generation."""
    return Response(msgspec.json.encode(body), media_type=MediaType.JSON)
