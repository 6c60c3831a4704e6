"""POST, GET, DELETE and cancelling of /v1/responses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar import Response as HttpResponse
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ASGIApp
from msgspec import UNSET

from rocmforge.api.acquire import Models
from rocmforge.api.dependencies import ModelsDep, SettingsDep
from rocmforge.api.generate.answer import (
    collect,
    collected,
    event_stream,
    json_answer,
    json_response,
    stream_events,
    streamed,
)
from rocmforge.api.generate.constraints import is_constrained
from rocmforge.api.generate.generation import Generation
from rocmforge.api.generate.schema import ChatRequest, Message
from rocmforge.api.http.body import read_json, read_query
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.responses.convert import (
    chat_request,
    input_messages,
    output_messages,
    prepare_response,
)
from rocmforge.api.responses.event_log import EventLog
from rocmforge.api.responses.input_items import InputItemsQuery, listed_items, page
from rocmforge.api.responses.schema import (
    DeletedResponse,
    Response,
    ResponsesRequest,
    RetrieveQuery,
)
from rocmforge.api.responses.store import OwnResponses, StoredResponse
from rocmforge.api.responses.writer import ResponsesWriter, error_event
from rocmforge.errors import InvalidParameter, ResponseNotFound, UnsupportedFeature

StoreDep = NamedDependency[OwnResponses]

_decoder = msgspec.json.Decoder(ResponsesRequest)


@post("/v1/responses", status_code=200)
async def create_response(
    request: Request[Any, Any, Any],
    models: ModelsDep,
    api_settings: SettingsDep,
    response_store: StoreDep,
) -> ASGIApp:
    """Generates a response to a conversation that is given as a list of items."""
    wanted = await read_json(request, _decoder)
    if wanted.background and not api_settings.max_stored_responses:
        raise UnsupportedFeature(
            "'background' needs responses to be stored, which this server does not do.",
            param="background",
        )
    history = _history(response_store, wanted.previous_response_id)
    asked = await models.offload(_read, wanted, history)
    answer = partial(_answer, request, models, api_settings, response_store, asked)
    if wanted.stream:
        return await models.keep_alive(wanted.model, answer, error_event)
    return await answer()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request, and what has been read out of it."""

    wanted: ResponsesRequest
    chat: ChatRequest  # that asks for the same
    conversation: list[Message]  # what was said before, and the input
    items: list[dict[str, Any]]  # of the input
    is_continued: bool  # whether something was said before


def _read(wanted: ResponsesRequest, history: list[Message]) -> _Asked:
    """Reads a request that goes on from `history`; raises as `chat_request`. For any thread."""
    conversation = [*history, *input_messages(wanted.input)]
    return _Asked(
        wanted=wanted,
        chat=chat_request(wanted, conversation),
        conversation=conversation,
        items=listed_items(wanted.input),
        is_continued=bool(history),
    )


async def _answer(
    request: Request[Any, Any, Any],
    models: Models,
    settings: ApiSettings,
    store: OwnResponses,
    asked: _Asked,
) -> ASGIApp:
    wanted = asked.wanted
    events = EventLog() if wanted.background and wanted.stream else None

    def keep(response: Response) -> None:
        if response.store:
            said = [*asked.conversation, *output_messages(response.output)]
            store.put(StoredResponse(response, said, asked.items, events))

    images = await models.read_images(wanted.model, asked.chat.messages)
    async with models.acquire(
        wanted.model,
        partial(
            prepare_response,
            chat=asked.chat,
            request=wanted,
            images=images,
            share=models.share,
        ),
        takes_long=asked.is_continued or is_constrained(asked.chat),
    ) as (model, prepared):
        writer = ResponsesWriter(model, prepared, wanted, keep)
        if not wanted.background:
            generation = Generation.start(model, writer.head.id, prepared)
            if wanted.stream:
                return streamed(generation, writer, settings)
            return await collected(request, models.in_thread, generation, writer)
        stored = StoredResponse(writer.response, asked.conversation, asked.items, events)
        store.put(stored)  # first: what is not kept need not be generated
        try:
            generation = Generation.start(model, writer.head.id, prepared)
        except BaseException:
            store.delete(writer.head.id)
            raise
        stored.task = _run_in_background(generation, writer, events)
    if events is not None:
        return event_stream(events.read(0), settings, writer.head.id)
    return json_answer(writer.response, writer.head.id)


@get("/v1/responses/{response_id:str}")
async def get_response(
    request: Request[Any, Any, Any],
    api_settings: SettingsDep,
    response_store: StoreDep,
    response_id: FromPath[str],
) -> ASGIApp:
    """Returns a stored response, or the stream of one that was begun in the background."""
    query = read_query(request, RetrieveQuery)
    stored = response_store.get(response_id)
    if not query.stream:
        if query.starting_after is not UNSET:
            raise InvalidParameter("'starting_after' needs 'stream'.", param="starting_after")
        return json_answer(stored.response, response_id)
    if stored.events is None:
        raise InvalidParameter(
            "Only responses that were created with 'background' and 'stream' can be streamed.",
            param="stream",
        )
    start = 0 if query.starting_after is UNSET else query.starting_after + 1
    return event_stream(stored.events.read(start), api_settings, response_id)


@get("/v1/responses/{response_id:str}/input_items")
async def list_input_items(
    request: Request[Any, Any, Any], response_store: StoreDep, response_id: FromPath[str]
) -> HttpResponse[bytes]:
    """Returns the input of a stored response, without what came before it."""
    query = read_query(request, InputItemsQuery)
    return json_response(page(response_store.get(response_id).input_items, query))


@post("/v1/responses/{response_id:str}/cancel", status_code=200)
async def cancel_response(
    response_store: StoreDep, response_id: FromPath[str]
) -> HttpResponse[bytes]:
    """Ends a response that runs in the background; one that has ended stays as it is."""
    if not response_store.get(response_id).response.background:
        raise InvalidParameter(
            "Only responses that were created with 'background' can be cancelled.",
            param="response_id",
        )
    return json_response(response_store.cancel(response_id))


@delete("/v1/responses/{response_id:str}", status_code=200)
async def delete_response(
    response_store: StoreDep, response_id: FromPath[str]
) -> HttpResponse[bytes]:
    """Forgets a response."""
    response_store.delete(response_id)
    return json_response(DeletedResponse(id=response_id))


def _history(store: OwnResponses, previous_id: str | None) -> list[Message]:
    """Returns the conversation that a request goes on from."""
    if previous_id is None:
        return []
    try:
        previous = store.get(previous_id)
    except ResponseNotFound:
        raise InvalidParameter(
            f"Previous response with id '{previous_id}' not found. It may never have been stored; "
            "the server keeps a limited number, and none across restarts.",
            param="previous_response_id",
        ) from None
    if previous.response.status not in ("completed", "incomplete"):
        raise InvalidParameter(
            f"Previous response with id '{previous_id}' is {previous.response.status}.",
            param="previous_response_id",
        )
    return previous.conversation


def _run_in_background(
    generation: Generation, writer: ResponsesWriter, events: EventLog | None
) -> asyncio.Task[None]:
    """Works on a response whoever waits for it; ends the generation and the log on any way out."""

    def close(task: asyncio.Task[None]) -> None:
        generation.close()
        if events is not None:
            events.close()

    task = asyncio.create_task(_run(generation, writer, events))
    task.add_done_callback(close)  # is called for one that was cancelled before it began, too
    return task


async def _run(generation: Generation, writer: ResponsesWriter, events: EventLog | None) -> None:
    if events is not None:
        async for encoded in stream_events(generation, writer):
            events.append(encoded)
        return
    try:
        writer.ended(writer.body(await collect(generation), generation.usage()))
    except Exception as error:
        writer.fail(error)
