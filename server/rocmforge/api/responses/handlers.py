"""POST, GET, DELETE and cancelling of /v1/responses."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar import Response as HttpResponse
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ASGIApp

from rocmforge.api.answer import AnswerHead, answer, collect, json_answer, json_response
from rocmforge.api.body import read_json
from rocmforge.api.constraints import is_constrained
from rocmforge.api.convert import chat_plan, renamed_fields
from rocmforge.api.dependencies import DispatchDep, SettingsDep
from rocmforge.api.generation import Generation, now_ns
from rocmforge.api.responses.convert import (
    FIELD_NAMES,
    chat_request,
    input_messages,
    output_messages,
)
from rocmforge.api.responses.schema import DeletedResponse, Response, ResponsesRequest
from rocmforge.api.responses.store import OwnResponses, StoredResponse
from rocmforge.api.responses.writer import ResponsesWriter
from rocmforge.api.schema import Message
from rocmforge.api.service import OFFLOAD_BYTES, Service
from rocmforge.errors import InvalidParameter, ResponseNotFound, UnsupportedFeature

StoreDep = NamedDependency[OwnResponses]

_decoder = msgspec.json.Decoder(ResponsesRequest)


@post("/v1/responses", status_code=200)
async def create_response(
    request: Request[Any, Any, Any],
    dispatch: DispatchDep,
    api_settings: SettingsDep,
    response_store: StoreDep,
) -> ASGIApp:
    """Answers a conversation, in items."""
    arrival_ns = now_ns()
    wanted = await read_json(request, _decoder)
    if wanted.background and not api_settings.max_stored_responses:
        raise UnsupportedFeature(
            "'background' needs responses to be stored, which this server does not do.",
            param="background",
        )
    history = _history(response_store, wanted.previous_response_id)
    conversation = [*history, *input_messages(wanted.input)]
    chat = chat_request(wanted, conversation)
    takes_long = bool(history) or is_constrained(chat)
    size = OFFLOAD_BYTES if takes_long else len(await request.body())

    def keep(response: Response) -> None:
        if response.store:
            said = output_messages(response.output)
            response_store.put(StoredResponse(response, [*conversation, *said]))

    async def respond(service: Service) -> ASGIApp:
        with renamed_fields(FIELD_NAMES):
            plan = await service.offload(size, chat_plan, service, chat)
        writer = ResponsesWriter(
            AnswerHead.make(service, "resp_"),
            wanted,
            plan,
            service.tokenizer,
            now=service.clock,
            keep=keep,
        )
        if wanted.background:
            generation = Generation.start(service, writer.head.id, plan, arrival_ns)
            task = asyncio.create_task(_run_in_background(generation, writer))
            response_store.put(StoredResponse(writer.response, conversation, task))
            return json_answer(writer.response, writer.head.id)
        return await answer(
            request,
            service,
            api_settings,
            plan,
            writer,
            arrival_ns=arrival_ns,
            stream=bool(wanted.stream),
        )

    return await dispatch.answer(
        wanted.model,
        respond,
        arrival_ns=arrival_ns,
        stream=bool(wanted.stream) and not wanted.background,
    )


@get("/v1/responses/{response_id:str}")
async def get_response(response_store: StoreDep, response_id: FromPath[str]) -> HttpResponse[bytes]:
    """A response that was stored."""
    return json_response(response_store.get(response_id).response)


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
    """The conversation that a request goes on from."""
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


async def _run_in_background(generation: Generation, writer: ResponsesWriter) -> None:
    try:
        writer.body(await collect(generation), generation.usage())
    except Exception as error:
        writer.fail(error)
    finally:
        generation.close()
