"""From Anthropic's requests to the chat request that asks for the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from rocmforge.api.generate import schema
from rocmforge.api.generate.checks import refuse_unsupported, renamed_fields, required
from rocmforge.api.generate.convert import prepare_chat
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.schema import ChatRequest, ContentPart, FunctionCall, ToolCall
from rocmforge.api.images.prompt_images import PromptImage
from rocmforge.api.images.schema import IMAGE, PlacedImage
from rocmforge.api.messages.schema import (
    CountTokensRequest,
    ImageSource,
    InputBlock,
    InputMessage,
    MessagesRequest,
    Thinking,
    Tool,
)
from rocmforge.engine.ipc.params import NO_KEY, Share
from rocmforge.errors import UnsupportedFeature
from rocmforge.fleet.model import ServedModel

NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],)}

# What the fields of a chat request are called here, for error messages.
FIELD_NAMES = {
    "max_completion_tokens": "max_tokens",
    "thinking_budget": "thinking.budget_tokens",
    "response_format.json_schema.schema": "output_config.format.schema",
    ".function.parameters": ".input_schema",
    "stop": "stop_sequences",
    "continue_final_message": "messages",
}

# Claude Code puts a line for Anthropic's accounting before the system prompt. It differs from
# request to request, so that no prefix could ever be found in the cache.
_ACCOUNTING = "x-anthropic-billing-header:"

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(request: CountTokensRequest) -> ChatRequest:
    """Converts the request to chat completions', all but `max_tokens`.

    Raises:
        InvalidParameter: a block or tool lacks something.
        UnsupportedFeature: it asks for something we do not do.
    """
    refuse_unsupported(request, NEUTRAL_VALUES)
    messages = _system(request.system)
    for number, message in enumerate(request.messages):
        messages += _messages(message, f"messages[{number}].content")
    form = None if request.output_config is None else request.output_config.format
    choice = request.tool_choice
    chat = ChatRequest(
        model=request.model,
        messages=messages,
        # An answer that the client has begun is continued.
        continue_final_message=request.messages[-1].role == "assistant",
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or [])] or None,
        tool_choice=_tool_choice(request),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        response_format=None
        if form is None
        else schema.ResponseFormat(
            type="json_schema", json_schema=schema.JsonSchemaFormat(schema=form.schema)
        ),
    )
    if request.thinking is not None:
        _think(request.thinking, chat)
    if isinstance(request, MessagesRequest):
        chat.temperature = request.temperature
        chat.top_p = request.top_p
        chat.top_k = request.top_k
        chat.stop = request.stop_sequences
    return chat


def prepare_message(
    model: ServedModel,
    chat: ChatRequest,
    max_tokens: int,
    images: Sequence[PromptImage] = (),
    share: Share = NO_KEY,
) -> PreparedRequest:
    """Prepares a message of at most so many tokens. Raises like `prepare_chat`.

    Clients must name a limit, and name what the model they know could give: one beyond the context
    is no mistake.
    """
    with renamed_fields(FIELD_NAMES):
        prepared = prepare_chat(model, chat, images, share)
    room = prepared.sampling.max_tokens
    return replace(
        prepared, sampling=structs.replace(prepared.sampling, max_tokens=min(room, max_tokens))
    )


def _think(thinking: Thinking, chat: ChatRequest) -> None:
    if thinking.type == "disabled":
        chat.reasoning_effort = "none"
    else:
        chat.chat_template_kwargs = {"enable_thinking": True}
        chat.thinking_budget = thinking.budget_tokens


def _system(system: str | Sequence[InputBlock] | None) -> list[schema.Message]:
    if system is None:
        return []
    if isinstance(system, str):
        texts = [system]
    else:
        texts = [_block_text(block, f"system[{i}]") for i, block in enumerate(system)]
    text = "\n".join(text for text in texts if not text.startswith(_ACCOUNTING))
    return [schema.Message(role="system", content=text)] if text else []


def _messages(message: InputMessage, path: str) -> list[schema.Message]:
    """Converts one message; results of tools in it become messages, before the rest."""
    if isinstance(message.content, str):
        return [schema.Message(role=message.role, content=message.content)]
    results: list[schema.Message] = []
    rest = schema.Message(role=message.role)
    parts: list[ContentPart] = []
    for number, block in enumerate(message.content):
        where = f"{path}[{number}]"
        match message.role, block.type:
            case "assistant", "tool_use":
                rest.tool_calls = [*(rest.tool_calls or ()), _call(block, where)]
            case "assistant", "thinking":
                rest.reasoning_content = required(block.thinking, f"{where}.thinking")
            case "assistant", "redacted_thinking":
                pass  # not ours, and nobody here can read it
            case "user", "tool_result":
                results.append(
                    schema.Message(
                        role="tool",
                        tool_call_id=required(block.tool_use_id, f"{where}.tool_use_id"),
                        content=_result(block, f"{where}.content"),
                    )
                )
            case _:
                parts.append(_part(block, where))
    if parts:
        rest.content = _content(parts)
    is_empty = not (parts or rest.tool_calls or rest.reasoning_content)
    if is_empty and not results:
        rest.content = ""
    return results if is_empty and results else [*results, rest]


def _block_text(block: InputBlock, path: str) -> str:
    if block.type != "text":
        raise UnsupportedFeature(
            f"Content of type {block.type!r} is not supported here.", param=path
        )
    return required(block.text, f"{path}.text")


def _part(block: InputBlock, path: str) -> ContentPart:
    if block.type == "image":
        source = required(block.source, f"{path}.source")
        return ContentPart(
            type=IMAGE, image_url=PlacedImage(url=_address(source, path), path=f"{path}.source")
        )
    return ContentPart(type="text", text=_block_text(block, path))


def _content(parts: list[ContentPart]) -> str | list[ContentPart]:
    """Returns parts as a message has them: a text alone is none."""
    return parts[0].text or "" if len(parts) == 1 and parts[0].type == "text" else parts


def _address(source: ImageSource, path: str) -> str:
    match source.type:
        case "base64":
            kind = required(source.media_type, f"{path}.source.media_type")
            return f"data:{kind};base64,{required(source.data, f'{path}.source.data')}"
        case "url":
            return required(source.url, f"{path}.source.url")
        case kind:
            raise UnsupportedFeature(
                f"Images from a source of type {kind!r} are not supported; 'base64' and 'url' are.",
                param=f"{path}.source.type",
            )


def _result(block: InputBlock, path: str) -> str | list[ContentPart]:
    if block.content is None or isinstance(block.content, str):
        return block.content or ""
    parts = [_part(part, f"{path}[{i}]") for i, part in enumerate(block.content)]
    if any(part.type == IMAGE for part in parts):
        return parts
    return "\n".join(part.text or "" for part in parts)


def _call(block: InputBlock, path: str) -> ToolCall:
    arguments = json.dumps(required(block.input, f"{path}.input"), ensure_ascii=False)
    function = FunctionCall(name=required(block.name, f"{path}.name"), arguments=arguments)
    return ToolCall(id=required(block.id, f"{path}.id"), function=function)


def _tool(tool: Tool, path: str) -> schema.Tool:
    if tool.type not in (None, "custom"):
        raise UnsupportedFeature(
            f"Tools of type {tool.type!r} are not supported; only your own are.",
            param=f"{path}.type",
        )
    return schema.Tool(
        function=schema.Function(
            name=tool.name,
            description=tool.description,
            parameters=required(tool.input_schema, f"{path}.input_schema"),
        )
    )


def _tool_choice(request: CountTokensRequest) -> Any:
    choice = request.tool_choice
    if choice is None:
        return None
    if choice.type == "tool":
        name = required(choice.name, "tool_choice.name")
        return schema.NamedTool(function=schema.FunctionName(name=name))
    return _CHOICES[choice.type]
