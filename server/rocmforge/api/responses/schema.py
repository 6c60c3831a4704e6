"""The wire format of /v1/responses: requests, answers and the events of a stream.

As in `api.generate.schema`, fields that are not known are ignored and named, and those that are
known and cannot be honoured are declared, so that they can be refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rocmforge.api.generate.schema import (
    MAX_LOGPROBS,
    CacheSalt,
    Labels,
    Metadata,
    Probability,
    ReasoningEffort,
    TokenLogprobs,
)
from rocmforge.api.images.schema import ImageDetail

Role = Literal["system", "developer", "user", "assistant"]
Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


# --- requests --------------------------------------------------------------------------------


class InputPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of content: `input_text`, `input_image` or `output_text`; others are refused."""

    type: str
    text: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: ImageDetail | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """One item of the input: a message, a call, what it returned, or reasoning.

    Which fields an item must have depends on its type; a message may leave the type out.
    """

    type: str = "message"
    role: Role | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None


class Function(msgspec.Struct, kw_only=True):
    """Name, purpose and parameters of a function, the last as a JSON schema."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Function, kw_only=True, tag_field="type", tag="function"):
    """A function that the model may call; `parameters` is a JSON schema."""


class NamespaceFunction(Function, kw_only=True):
    """A function of a namespace."""

    type: Literal["function"]


class NamespaceTool(msgspec.Struct, kw_only=True, tag_field="type", tag="namespace"):
    """Functions under a name that they share, such as those of an MCP server."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    tools: Annotated[list[NamespaceFunction], Meta(min_length=1)]
    description: str | None = None


Tool = FunctionTool | NamespaceTool


class AllowedTool(msgspec.Struct, kw_only=True):
    """One of the tools that may be called."""

    type: Literal["function"]
    name: str


class ForcedTool(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """The function that must be called."""

    name: str


class AllowedTools(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The tools that may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class AnyText(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """The answer may be any text."""


class JsonObject(msgspec.Struct, kw_only=True, tag_field="type", tag="json_object"):
    """The answer has to be a JSON object."""


class JsonOfSchema(msgspec.Struct, kw_only=True, tag_field="type", tag="json_schema"):
    """The answer has to validate against a schema; always enforced, `strict` or not."""

    schema: dict[str, Any] | bool
    name: str = "answer"
    description: str | None = None
    strict: bool | None = None


TextFormat = AnyText | JsonObject | JsonOfSchema


class TextConfig(msgspec.Struct, kw_only=True):
    """The form of the answer's text."""

    format: TextFormat | None = None


class ReasoningConfig(msgspec.Struct, kw_only=True):
    """The wanted amount of reasoning; the model's chat template decides what it makes of it."""

    effort: ReasoningEffort | None = None
    summary: str | None = None


# Only log-probabilities are there to be included.
Inclusion = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ResponsesRequest(Labels, kw_only=True):
    """Body of POST /v1/responses."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    stream: bool | None = None

    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    include: list[Inclusion] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None

    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ForcedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None

    # Not OpenAI's.
    seed: int | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    cache_salt: CacheSalt | None = None  # vLLM's

    # Known and not supported; see `convert.NEUTRAL_VALUES`.
    truncation: Any = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None


class RetrieveQuery(msgspec.Struct, kw_only=True):
    """The form in which a stored response is wanted."""

    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0)] | UnsetType = UNSET  # number of an event


# --- answers ---------------------------------------------------------------------------------


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    """Text that the model said."""

    text: str
    logprobs: list[TokenLogprobs]
    annotations: list[None] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """The text of the model's reasoning."""

    text: str


class MessageItem(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """The model's reasoning."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[None] = msgspec.field(default_factory=list)


class FunctionCallItem(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str
    status: Status


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """The origin of input tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0  # as nobody pays for them


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    """The use of output tokens."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, kw_only=True):
    """Why a response failed; the code is one of those that OpenAI's clients know."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Response(msgspec.Struct, kw_only=True):
    """Answer of POST and GET /v1/responses, and part of many events. Repeats what was asked."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    model: str
    output: list[OutputItem] = msgspec.field(default_factory=list)
    usage: ResponseUsage | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None

    instructions: str | None
    previous_response_id: str | None
    store: bool
    background: bool
    metadata: Metadata
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    text: TextConfig
    reasoning: ReasoningConfig
    tools: list[Tool]
    tool_choice: Literal["none", "auto", "required"] | ForcedTool | AllowedTools
    parallel_tool_calls: bool
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    service_tier: Literal["default"] = "default"
    truncation: Literal["disabled"] = "disabled"


class DeletedResponse(msgspec.Struct, kw_only=True):
    """Answer of DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
