"""From a Responses request to the chat request that asks for the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rocmforge.api.generate import schema
from rocmforge.api.generate.checks import refuse_unsupported, renamed_fields, required
from rocmforge.api.generate.convert import prepare_chat
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.schema import ChatRequest, FunctionCall, Message, ToolCall
from rocmforge.api.images.prompt_images import PromptImage
from rocmforge.api.images.schema import IMAGE, PlacedImage
from rocmforge.api.responses.schema import (
    AnyText,
    InputItem,
    InputPart,
    JsonObject,
    JsonOfSchema,
    OutputItem,
    ResponsesRequest,
    Role,
    TextFormat,
)
from rocmforge.api.responses.tools import chat_name, offered_tools, tool_paths
from rocmforge.engine.ipc.params import NO_KEY, Share
from rocmforge.errors import InvalidParameter, UnsupportedFeature
from rocmforge.fleet.model import ServedModel

NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "truncation": ("disabled",),
    "conversation": (),
    "prompt": (),
    "context_management": ([],),
    "moderation": (),
}

# What the fields of a chat request are called here, for error messages.
FIELD_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema.schema": "text.format.schema",
    ".function.parameters": ".parameters",
}

_LOGPROBS = "message.output_text.logprobs"
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def chat_request(request: ResponsesRequest, conversation: Sequence[Message]) -> ChatRequest:
    """Converts the request to chat completions'.

    Args:
        request: as it came.
        conversation: what was said before and the request's own input, without instructions.

    Raises:
        InvalidParameter: fields contradict each other.
        UnsupportedFeature: it asks for something we do not do.
    """
    refuse_unsupported(request, NEUTRAL_VALUES)
    if request.background and request.store is False:
        raise InvalidParameter("'background' needs 'store' to be true.", param="background")
    messages = list(conversation)
    if request.instructions is not None:
        messages.insert(0, Message(role="system", content=request.instructions))
    tools, choice = offered_tools(request)
    effort = None if request.reasoning is None else request.reasoning.effort
    wants_logprobs = _LOGPROBS in (request.include or ())
    return ChatRequest(
        model=request.model,
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        cache_salt=request.cache_salt,
        seed=request.seed,
        logprobs=wants_logprobs,
        top_logprobs=request.top_logprobs if wants_logprobs else None,
        response_format=None if request.text is None else _response_format(request.text.format),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning_effort=effort,
    )


def prepare_response(
    model: ServedModel,
    chat: ChatRequest,
    request: ResponsesRequest,
    images: Sequence[PromptImage] = (),
    share: Share = NO_KEY,
) -> PreparedRequest:
    """Prepares a response to the request that `chat` was made of. Raises like `prepare_chat`."""
    with renamed_fields(FIELD_NAMES), renamed_fields(tool_paths(request.tools or ())):
        return prepare_chat(model, chat, images, share)


def input_messages(given: str | Sequence[InputItem]) -> list[Message]:
    """Converts input items to messages of a chat.

    Reasoning and calls belong to the assistant's message they stand next to.

    Raises:
        InvalidParameter: an item lacks something.
        UnsupportedFeature: it is of a type we do not know.
    """
    if isinstance(given, str):
        return [Message(role="user", content=given)]
    messages: list[Message] = []
    reasoning = ""
    for number, item in enumerate(given):
        path = f"input[{number}]"
        match item.type:
            case "message":
                role: Role = required(item.role, f"{path}.role")
                content = _content(item.content, f"{path}.content")
                messages.append(Message(role=role, content=content))
            case "function_call":
                call = ToolCall(
                    id=required(item.call_id, f"{path}.call_id"),
                    function=FunctionCall(
                        name=chat_name(item.namespace, required(item.name, f"{path}.name")),
                        arguments=required(item.arguments, f"{path}.arguments"),
                    ),
                )
                if not messages or messages[-1].role != "assistant" or reasoning:
                    messages.append(Message(role="assistant"))
                messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), call]
            case "function_call_output":
                messages.append(
                    Message(
                        role="tool",
                        tool_call_id=required(item.call_id, f"{path}.call_id"),
                        content=_content(item.output, f"{path}.output"),
                    )
                )
            case "reasoning":
                thought = item.content if item.content is not None else (item.summary or "")
                reasoning = _text(thought, f"{path}.content")
                continue
            case kind:
                raise UnsupportedFeature(
                    f"Input items of type {kind!r} are not supported.", param=f"{path}.type"
                )
        if reasoning and messages[-1].role == "assistant":
            messages[-1].reasoning_content = reasoning
        reasoning = ""
    return messages


def output_messages(items: Sequence[OutputItem]) -> list[Message]:
    """Converts the model's output to messages of the history."""
    return input_messages(msgspec.convert(msgspec.to_builtins(items), list[InputItem]))


def _content(content: str | list[InputPart] | None, path: str) -> str | list[schema.ContentPart]:
    """Converts content; texts alone are joined."""
    if not isinstance(content, list) or all(part.type != "input_image" for part in content):
        return _text(content, path)
    return [_part(part, f"{path}[{number}]") for number, part in enumerate(content)]


def _part(part: InputPart, path: str) -> schema.ContentPart:
    if part.type != "input_image":
        return schema.ContentPart(type="text", text=_part_text(part, path))
    if part.file_id is not None:
        raise UnsupportedFeature(
            "Files are not stored here: give the image as 'image_url'.", param=f"{path}.file_id"
        )
    address = required(part.image_url, f"{path}.image_url")
    image = PlacedImage(url=address, detail=part.detail, path=f"{path}.image_url")
    return schema.ContentPart(type=IMAGE, image_url=image)


def _text(content: str | list[InputPart] | None, path: str) -> str:
    if isinstance(content, str):
        return content
    parts = enumerate(required(content, path))
    return "\n".join(_part_text(part, f"{path}[{number}]") for number, part in parts)


def _part_text(part: InputPart, path: str) -> str:
    if part.type == "refusal":
        return required(part.refusal, f"{path}.refusal")
    if part.type in _TEXT_PARTS:
        return required(part.text, f"{path}.text")
    raise UnsupportedFeature(
        f"Content of type {part.type!r} is not supported; only text and images are.", param=path
    )


def _response_format(form: TextFormat | None) -> schema.ResponseFormat:
    match form:
        case None | AnyText():
            return schema.ResponseFormat(type="text")
        case JsonObject():
            return schema.ResponseFormat(type="json_object")
        case JsonOfSchema(schema=wanted):
            return schema.ResponseFormat(
                type="json_schema", json_schema=schema.JsonSchemaFormat(schema=wanted)
            )
