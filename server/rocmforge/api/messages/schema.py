"""The wire format of Anthropic's /v1/messages: requests, answers, events and errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rocmforge.api.generate.schema import Probability
from rocmforge.api.http.sse import NamedEvent

# --- requests --------------------------------------------------------------------------------


class ImageSource(msgspec.Struct, kw_only=True):
    """Where an image comes from: itself in base64, or an address; other types are refused."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class InputBlock(msgspec.Struct, kw_only=True):
    """A block of content; which fields it must have depends on its type.

    `text`, `image`, `thinking`, `tool_use` and `tool_result` have a meaning here; others are
    refused.
    """

    type: str
    text: str | None = None
    source: ImageSource | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[InputBlock] | None = None


class InputMessage(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[InputBlock]


class Tool(msgspec.Struct, kw_only=True):
    """A function that the model may call; those that a server would run are refused by type."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """The choice whether a tool must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """The choice whether to think; the model's chat template decides what it makes of it."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """The JSON schema that the answer must validate against."""

    type: Literal["json_schema"]
    schema: dict[str, Any] | bool


class OutputConfig(msgspec.Struct, kw_only=True):
    """The form of the answer."""

    format: OutputFormat | None = None
    effort: str | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """Body of POST /v1/messages/count_tokens."""

    model: str
    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    system: str | list[InputBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """Body of POST /v1/messages."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: dict[str, Any] | None = None  # what clients tell Anthropic; it changes nothing

    # Known and not supported; see `convert.NEUTRAL_VALUES`.
    container: Any = None
    mcp_servers: Any = None


# --- answers ---------------------------------------------------------------------------------


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of a message; those read from the prefix cache are not among `input_tokens`."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """Text that the model said."""

    text: str


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    """The model's reasoning. Nobody checks the signature when it is sent back."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a function."""

    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class Message(msgspec.Struct, kw_only=True):
    """Answer of POST /v1/messages, and part of the first event of a stream."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage


class TokenCount(msgspec.Struct, kw_only=True):
    """Answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class ModelInfo(msgspec.Struct, kw_only=True):
    """One model, as GET /v1/models lists it for Anthropic's clients."""

    id: str
    display_name: str
    created_at: str  # RFC 3339
    type: Literal["model"] = "model"


class ModelPage(msgspec.Struct, kw_only=True):
    """Answer of GET /v1/models for Anthropic's clients; there is one page."""

    data: list[ModelInfo]
    first_id: str
    last_id: str
    has_more: Literal[False] = False


# --- events ----------------------------------------------------------------------------------


class Event(NamedEvent, kw_only=True):
    """Base of all events."""


class MessageStart(Event, kw_only=True, tag="message_start"):
    """The first event: a message without content."""

    message: Message


class Ping(Event, kw_only=True, tag="ping"):
    """Nothing; clients must expect it anywhere."""


class BlockStart(Event, kw_only=True, tag="content_block_start"):
    """A block begins."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking_delta"):
    """More of what the model thinks."""

    thinking: str


class InputDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="input_json_delta"):
    """More of the JSON text of a call's arguments."""

    partial_json: str


class BlockDelta(Event, kw_only=True, tag="content_block_delta"):
    """A block goes on."""

    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(Event, kw_only=True, tag="content_block_stop"):
    """A block is complete."""

    index: int


class Ending(msgspec.Struct, kw_only=True):
    """Why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Event, kw_only=True, tag="message_delta"):
    """The facts about the whole message at its end."""

    delta: Ending
    usage: Usage


class MessageStop(Event, kw_only=True, tag="message_stop"):
    """The last event."""


class ErrorDetail(msgspec.Struct, kw_only=True):
    """The error in a body."""

    type: str
    message: str


class Error(Event, kw_only=True, tag="error"):
    """The body of an answer with a status of 400 or more, and the last event of a failed stream."""

    error: ErrorDetail
