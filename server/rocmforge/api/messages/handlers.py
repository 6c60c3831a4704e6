"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.types import ASGIApp

from rocmforge.api.answer import AnswerHead, answer, json_response
from rocmforge.api.body import read_json
from rocmforge.api.constraints import is_constrained
from rocmforge.api.convert import chat_plan, renamed_fields, request_prompt
from rocmforge.api.dependencies import DispatchDep, SettingsDep
from rocmforge.api.generation import now_ns
from rocmforge.api.messages.convert import FIELD_NAMES, chat_request
from rocmforge.api.messages.errors import error_event
from rocmforge.api.messages.schema import CountTokensRequest, MessagesRequest, TokenCount
from rocmforge.api.messages.writer import MessagesWriter
from rocmforge.api.service import OFFLOAD_BYTES, Service

PATH = "/v1/messages"

_decoder = msgspec.json.Decoder(MessagesRequest)
_count_decoder = msgspec.json.Decoder(CountTokensRequest)


@post(PATH, status_code=200)
async def create_message(
    request: Request[Any, Any, Any], dispatch: DispatchDep, api_settings: SettingsDep
) -> ASGIApp:
    """Answers a conversation, in Anthropic's format."""
    arrival_ns = now_ns()
    wanted = await read_json(request, _decoder)
    chat = chat_request(wanted)

    async def respond(service: Service) -> ASGIApp:
        size = OFFLOAD_BYTES if is_constrained(chat) else len(await request.body())
        with renamed_fields(FIELD_NAMES):
            plan = await service.offload(size, chat_plan, service, chat)
        # Clients must name a limit, and name what the model they know could give. One beyond the
        # context is no mistake.
        room = plan.sampling.max_tokens
        sampling = msgspec.structs.replace(plan.sampling, max_tokens=min(room, wanted.max_tokens))
        plan = dataclasses.replace(plan, sampling=sampling)
        writer = MessagesWriter(
            AnswerHead.make(service, "msg_"), plan, fills_context=room < wanted.max_tokens
        )
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
        stream=bool(wanted.stream),
        failure=error_event,
    )


@post(f"{PATH}/count_tokens", status_code=200)
async def count_tokens(request: Request[Any, Any, Any], dispatch: DispatchDep) -> Response[bytes]:
    """How many tokens a conversation would be."""
    wanted = await read_json(request, _count_decoder)
    chat = chat_request(wanted)
    service = dispatch.find(chat.model)
    with renamed_fields(FIELD_NAMES):
        prompt = await service.offload(len(await request.body()), request_prompt, service, chat)
    return json_response(TokenCount(input_tokens=len(prompt)))
