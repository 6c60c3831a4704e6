"""The OpenAI wire format: what requests and answers look like as JSON, and nothing else.

Types and ranges here are checked while a body is decoded, so that an error can name the field.
Fields that requests carry and we do not know are ignored, and named in a header of the answer (see
`api.http.unknown_fields`); those that we know and cannot honour are declared here, so that `checks`
sees and refuses them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rocmforge.api.images.schema import ImageUrl

MAX_CHOICES = 128
MAX_LOGPROBS = 20

Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenIds = list[int]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=256)]
"""Requests share cached prefixes only with those that have the same one, and the same API key."""
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


# --- requests --------------------------------------------------------------------------------


class StreamOptions(msgspec.Struct, kw_only=True):
    """The parts of a stream besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: usage so far in every chunk


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """A schema that the answer must validate against; always enforced, `strict` or not."""

    schema: dict[str, Any] | bool | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """The form of the answer: any text, a JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """The form of the answer as vLLM has it: one of these."""

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # Lark
    json_object: bool | None = None


class Labels(msgspec.Struct, kw_only=True):
    """The labels that clients give a request for OpenAI; no part of it changes the answer.

    Prefixes are cached for each API key anyway, there is one tier, and only /v1/responses stores
    anything.
    """

    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    metadata: Metadata | None = None
    store: bool | None = None


class GenerationRequest(Labels, kw_only=True):
    """The fields that /v1/chat/completions and /v1/completions have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[int, Annotated[float, Meta(ge=-100, le=100)]] | None = None

    # Not OpenAI's, but common among servers of open models.
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    # Logits are divided by it: below that they would leave the range of float32.
    repetition_penalty: Annotated[float, Meta(ge=1e-6, le=10)] | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    logits_processors: dict[str, dict[str, Any]] | None = None  # ranges: as each declares them
    cache_salt: CacheSalt | None = None  # vLLM's
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    timeout: Annotated[float, Meta(gt=0)] | None = None  # seconds until it is ended with an error
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    # Speculative decoding, under the names that Transformers has for it: by prompt lookup, and by
    # the draft model.
    prompt_lookup_num_tokens: Annotated[int, Meta(ge=0, le=32)] | None = None
    num_assistant_tokens: Annotated[int, Meta(ge=0, le=32)] | None = None

    # The form of the answer: OpenAI's way, and vLLM's two.
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None

    # Known and not supported (`checks.NEUTRAL_VALUES` lists what is let through).
    grammar: Any = None
    json_schema: Any = None
    mirostat: Any = None
    use_beam_search: Any = None


class ContentPart(msgspec.Struct, kw_only=True):
    """A piece of a message's content: `text` or `image_url`; other types are refused by name."""

    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None  # a bare address as Mistral has it


class FunctionCall(msgspec.Struct, kw_only=True):
    """The function of a tool call in the history."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call in the history."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class Function(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the model may use; there are only functions."""

    function: Function
    type: Literal["function"] = "function"


class FunctionName(msgspec.Struct, kw_only=True):
    """The name of a function."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """The function that must be called."""

    function: FunctionName
    type: Literal["function"] = "function"


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(GenerationRequest, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[Message]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    # Tokens, then it has to answer.
    thinking_budget: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    best_of: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    chat_template: Any = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | list[str | int | TokenIds]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    suffix: str | None = None  # of the text in whose middle the model writes


# --- answers ---------------------------------------------------------------------------------


ServiceTier = Literal["default"]
"""The one there is."""


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """The origin of prompt tokens."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """The use of completion tokens."""

    reasoning_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of a request: its prompts once each, its completions over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None  # null while the answer is streamed
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET  # of models that reason

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompts that came from the prefix cache, as far as it is known."""
        return 0 if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class PromptLogprob(msgspec.Struct, kw_only=True):
    """A token at a place of the prompt, as vLLM has it; the rank is null for one far down."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""For each token of the prompt, it and the most probable ones there, by id; null for the first."""


class TopLogprob(msgspec.Struct, kw_only=True):
    """A token that could have stood at a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(TopLogprob, kw_only=True):
    """The token that stands at a place, and the most probable ones there."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of a choice, chat style."""

    content: list[TokenLogprobs]
    refusal: None = None


class AnswerMessage(msgspec.Struct, kw_only=True):
    """The message of the model."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, kw_only=True):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: ServiceTier | UnsetType = UNSET  # if the request names one
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, kw_only=True):
    """The part of a call's function in a chunk."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """The part of a call in a chunk: first its id and name, then pieces of its arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Delta(msgspec.Struct, kw_only=True):
    """The part of a message in a chunk."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """The part of one answer in a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    service_tier: ServiceTier | UnsetType = UNSET  # if the request names one


class LegacyLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of a choice, as /v1/completions gives them: parallel lists.

    The first token of an echoed prompt has no probability: null in two of the lists.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """Answer of POST /v1/completions, and each event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
