"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.types import ASGIApp

from rocmforge.api.dependencies import DispatchDep, SettingsDep
from rocmforge.api.generate.answer import json_response
from rocmforge.api.generate.checks import renamed_fields
from rocmforge.api.generate.constraints import is_constrained
from rocmforge.api.generate.prompts import request_prompt
from rocmforge.api.generate.task import Task, perform
from rocmforge.api.http.body import read_json
from rocmforge.api.messages.convert import FIELD_NAMES, chat_request, message_plan
from rocmforge.api.messages.errors import error_event
from rocmforge.api.messages.schema import CountTokensRequest, MessagesRequest, TokenCount
from rocmforge.api.messages.writer import MessagesWriter

PATH = "/v1/messages"

_decoder = msgspec.json.Decoder(MessagesRequest)
_count_decoder = msgspec.json.Decoder(CountTokensRequest)


@post(PATH, status_code=200)
async def create_message(
    request: Request[Any, Any, Any], dispatch: DispatchDep, api_settings: SettingsDep
) -> ASGIApp:
    """Answers a conversation, in Anthropic's format."""
    wanted = await read_json(request, _decoder)
    chat = chat_request(wanted)
    task = Task(
        model=wanted.model,
        plan=lambda service: message_plan(service, chat, wanted.max_tokens),
        writer=lambda service, plan: MessagesWriter(service, plan, wanted.max_tokens),
        stream=bool(wanted.stream),
        takes_long=is_constrained(chat),
        failure=error_event,
    )
    return await perform(request, dispatch, api_settings, task)


@post(f"{PATH}/count_tokens", status_code=200)
async def count_tokens(request: Request[Any, Any, Any], dispatch: DispatchDep) -> Response[bytes]:
    """How many tokens a conversation would be."""
    wanted = await read_json(request, _count_decoder)
    chat = chat_request(wanted)
    service = dispatch.find(chat.model)
    with renamed_fields(FIELD_NAMES):
        prompt = await service.offload(len(await request.body()), request_prompt, service, chat)
    return json_response(TokenCount(input_tokens=len(prompt)))
