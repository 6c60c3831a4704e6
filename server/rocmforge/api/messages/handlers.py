"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.types import ASGIApp

from rocmforge.api.acquire import Models
from rocmforge.api.dependencies import ModelsDep, SettingsDep
from rocmforge.api.generate.answer import collected, json_response, streamed
from rocmforge.api.generate.checks import renamed_fields
from rocmforge.api.generate.constraints import is_constrained
from rocmforge.api.generate.generation import Generation
from rocmforge.api.generate.prompts import request_prompt
from rocmforge.api.generate.schema import ChatRequest
from rocmforge.api.http.body import read_json
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.messages.convert import FIELD_NAMES, chat_request, prepare_message
from rocmforge.api.messages.errors import error_event
from rocmforge.api.messages.schema import CountTokensRequest, MessagesRequest, TokenCount
from rocmforge.api.messages.writer import MessagesWriter

PATH = "/v1/messages"

_decoder = msgspec.json.Decoder(MessagesRequest)
_count_decoder = msgspec.json.Decoder(CountTokensRequest)


@post(PATH, status_code=200)
async def create_message(
    request: Request[Any, Any, Any], models: ModelsDep, api_settings: SettingsDep
) -> ASGIApp:
    """Answers a conversation, in Anthropic's format."""
    wanted = await read_json(request, _decoder)
    chat = await models.offload(chat_request, wanted)
    answer = partial(_answer, request, models, api_settings, wanted, chat)
    if wanted.stream:
        return await models.keep_alive(wanted.model, answer, error_event)
    return await answer()


async def _answer(
    request: Request[Any, Any, Any],
    models: Models,
    settings: ApiSettings,
    wanted: MessagesRequest,
    chat: ChatRequest,
) -> ASGIApp:
    images = await models.read_images(wanted.model, chat.messages)
    async with models.acquire(
        wanted.model,
        partial(
            prepare_message,
            chat=chat,
            max_tokens=wanted.max_tokens,
            images=images,
            share=models.share,
        ),
        takes_long=is_constrained(chat),
    ) as (model, prepared):
        writer = MessagesWriter(model, prepared, wanted.max_tokens)
        generation = Generation.start(model, writer.head.id, prepared)
        if wanted.stream:
            return streamed(generation, writer, settings)
        return await collected(request, models.in_thread, generation, writer)


@post(f"{PATH}/count_tokens", status_code=200)
async def count_tokens(request: Request[Any, Any, Any], models: ModelsDep) -> Response[bytes]:
    """Counts the tokens that a conversation would be."""
    wanted = await read_json(request, _count_decoder)
    chat = await models.offload(chat_request, wanted)
    model = models.find(chat.model)
    images = await models.read_images(chat.model, chat.messages)
    with renamed_fields(FIELD_NAMES):
        prompt = await models.offload(request_prompt, model, chat, images, models.share)
    return json_response(TokenCount(input_tokens=len(prompt)))
