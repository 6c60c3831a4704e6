"""From wire types to a `Plan`: everything a client can get wrong is answered here.

These functions are pure and may run in a worker thread. They raise `RequestError`s that name the
parameter; nothing has been submitted or sent by then.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import msgspec

from rocmforge.api.constraints import output_grammar
from rocmforge.api.plan import Plan
from rocmforge.api.schema import (
    ChatRequest,
    ContentPart,
    GenerationRequest,
    Message,
)
from rocmforge.api.service import Service
from rocmforge.api.tools import offered_tools, tool_use
from rocmforge.engine.params import SamplingParams, Thinking
from rocmforge.errors import (
    BadTemplate,
    ContextLengthExceeded,
    InvalidParameter,
    RequestError,
    UnsupportedFeature,
)
from rocmforge.models.pooling import PoolingType
from rocmforge.text.reasoning import BEGIN, END, reasons
from rocmforge.text.template import encode_prompt
from rocmforge.text.tool_calls import tools_as_text

T = TypeVar("T")

# Tokens of reasoning by effort; those that are not here may think as long as they want.
THINKING_BUDGETS = {"none": 0, "minimal": 512, "low": 2048, "medium": 8192}
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 512
MAX_BIASED_TOKENS = 1024
SEED_MASK = (1 << 64) - 1

# What chat templates are given from other places than `chat_template_kwargs`.
TEMPLATE_NAMES = (
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
)

# Fields that ask for something we do not do, and the values with which they ask for nothing.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "grammar": ("",),
    "json_schema": (),
    "mirostat": (0,),
    "use_beam_search": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "chat_template": (),
}


def chat_plan(service: Service, request: ChatRequest) -> Plan:
    """The plan of a chat completion.

    Raises:
        RequestError: the request cannot be served as it was sent.
        NotReady: the model's limits are not known yet.
    """
    check_common(service, request)
    check_at_once(service, request.n or 1, "n")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise UnsupportedFeature("'best_of' is supported only if equal to 'n'.", param="best_of")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidParameter("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    num_logprobs = (request.top_logprobs or 0) if request.logprobs else -1
    tools = offered_tools(request)
    prompt = request_prompt(service, request)
    param = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    wanted = request.max_completion_tokens or request.max_tokens
    room = check_room(service, prompt, wanted, param=param, prompt_param="messages")
    sampling = sampling_params(
        service, request, max_tokens=wanted or room, num_logprobs=num_logprobs
    )
    reasoning = _reasoning(service, prompt)
    use = None
    if tools:
        use, grammar = tool_use(service, request, tools, sampling.grammar)
        sampling = msgspec.structs.replace(sampling, grammar=grammar)
    thinking = _thinking(service, request, reasoning)
    if sampling.grammar and thinking is None:
        reasoning = None  # the grammar is that of the whole answer
    elif thinking is not None and (sampling.grammar or thinking.budget is not None):
        sampling = msgspec.structs.replace(sampling, thinking=thinking)
    return Plan(
        prompts=(prompt,),
        sampling=sampling,
        n=request.n or 1,
        stop=stop_strings(request),
        timeout_s=request.timeout,
        tools=use,
        reasoning=reasoning,
    )


def _reasoning(service: Service, prompt: Sequence[int]) -> Literal["begun", "possible"] | None:
    if not reasons(service.templates.select().source):
        return None
    tail = service.tokenizer.decode(prompt[-8:], skip_special=False).rstrip()
    if tail.endswith(END):
        return None  # the prompt has closed it: the model is not to think
    return "begun" if tail.endswith(BEGIN) else "possible"


def _thinking(
    service: Service, request: ChatRequest, reasoning: Literal["begun", "possible"] | None
) -> Thinking | None:
    """The section of reasoning before the answer; None if there can be none."""
    budget = request.thinking_budget
    if budget is None and request.reasoning_effort is not None:
        budget = THINKING_BUDGETS.get(request.reasoning_effort)
    marks = [service.tokenizer.encode(mark, parse_special=True) for mark in (BEGIN, END)]
    if reasoning is None or any(len(ids) != 1 for ids in marks):
        if request.thinking_budget is not None and reasoning is not None:
            raise UnsupportedFeature(
                f"This model's vocabulary has no token for {END}, so a section of reasoning "
                "cannot be ended.",
                param="thinking_budget",
            )
        return None
    ((begin,), (end,)) = marks
    return Thinking(begin=begin, end=end, is_begun=reasoning == "begun", budget=budget)


def request_prompt(service: Service, request: ChatRequest) -> tuple[int, ...]:
    """The token ids of a chat's conversation and tools. Raises like `chat_plan`."""
    return chat_prompt(
        service,
        request.messages,
        tools=offered_tools(request),
        template_arguments=_template_arguments(request),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
    )


def _template_arguments(request: ChatRequest) -> dict[str, Any]:
    """Variables for the template: gpt-oss reads the effort, most others whether to think."""
    given = request.chat_template_kwargs or {}
    if request.reasoning_effort is None:
        return given
    effort = request.reasoning_effort
    return {"reasoning_effort": effort, "enable_thinking": effort != "none", **given}


def chat_prompt(
    service: Service,
    messages: Sequence[Message],
    *,
    template_arguments: dict[str, Any] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    tools: Sequence[dict[str, Any]] = (),
) -> tuple[int, ...]:
    """A conversation as token ids, through the model's chat template."""
    if not messages:
        raise InvalidParameter("'messages' must not be empty.", param="messages")
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    if continue_final_message and add_generation_prompt:
        raise InvalidParameter(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
            param="continue_final_message",
        )
    if continue_final_message and messages[-1].role != "assistant":
        raise InvalidParameter(
            "'continue_final_message' needs the last message to be the assistant's.",
            param="continue_final_message",
        )
    for name in TEMPLATE_NAMES:
        if name in (template_arguments or {}):
            raise InvalidParameter(
                f"'chat_template_kwargs' cannot set {name!r}: it is for what the template reads "
                "besides the conversation, the tools and where the prompt ends.",
                param=f"chat_template_kwargs.{name}",
            )
    prepared = [_template_message(m, f"messages[{i}]") for i, m in enumerate(messages)]
    template = service.templates.select(with_tools=bool(tools))
    if tools and "tools" not in template.source:
        prepared.insert(0, {"role": "system", "content": tools_as_text(tools)})
    try:
        rendered = template.render(
            prepared,
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=bool(continue_final_message),
            variables=template_arguments,
        )
    except BadTemplate as error:  # it worked when the model was loaded: this input is too much
        raise InvalidParameter(error.message, param="messages") from error
    return tuple(encode_prompt(service.tokenizer, rendered))


def refuse_unsupported(
    request: msgspec.Struct, neutral_values: Mapping[str, tuple[Any, ...]]
) -> None:
    """Raises UnsupportedFeature if a field that we cannot honour asks for something.

    Args:
        request: may have the fields.
        neutral_values: for each field, the values besides null with which it asks for nothing.
    """
    for name, neutral in neutral_values.items():
        value = getattr(request, name, None)
        if value is not None and value not in neutral:
            raise UnsupportedFeature(f"'{name}' is not supported by this server.", param=name)


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Lets errors about a converted request name the fields of the request that came.

    Args:
        names: what a field is called there, by (a part of) its name here; the first one counts.
    """
    try:
        yield
    except RequestError as error:
        old = next((name for name in names if name in (error.param or "")), None)
        if old is not None and error.param is not None:
            param = error.param.replace(old, names[old])
            error.message = error.message.replace(f"'{error.param}'", f"'{param}'")
            error.param = param
        raise


def required(value: T | None, path: str) -> T:
    """Raises InvalidParameter for a value that is missing."""
    if value is None:
        raise InvalidParameter(f"Missing required parameter: '{path}'.", param=path)
    return value


def check_token_ids(service: Service, ids: Sequence[int], param: str) -> None:
    """Raises InvalidParameter for an id that is not in the vocabulary."""
    size = service.tokenizer.vocab_size
    if ids and (min(ids) < 0 or max(ids) >= size):
        wrong = next(i for i in ids if not 0 <= i < size)
        raise InvalidParameter(
            f"Token id {wrong} in '{param}' is not in the vocabulary of {size} tokens.",
            param=param,
        )


def check_common(service: Service, request: GenerationRequest) -> None:
    """Raises what any request for tokens can get wrong besides its prompt."""
    if service.is_encoder:
        ranks = service.pooling is PoolingType.RANK
        raise UnsupportedFeature(
            f"The model {service.model!r} is an encoder and generates no text. "
            f"Use {'/v1/rerank' if ranks else '/v1/embeddings'}.",
            param="model",
        )
    refuse_unsupported(request, NEUTRAL_VALUES)
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidParameter("'prompt_logprobs' cannot be streamed.", param="prompt_logprobs")
    if request.stream_options is not None and not request.stream:
        raise InvalidParameter(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )


def check_at_once(service: Service, sequences: int, param: str) -> None:
    """Raises InvalidParameter for more sequences than there is ever room for."""
    if sequences > service.max_at_once:
        raise InvalidParameter(
            f"The request asks for {sequences} sequences (prompts times 'n'), but this server "
            f"takes {service.max_at_once} at once.",
            param=param,
        )


def check_room(
    service: Service,
    prompt: Sequence[int],
    max_tokens: int | None,
    *,
    param: str,
    prompt_param: str,
) -> int:
    """How many tokens may follow `prompt`; raises if that is none, or fewer than wanted."""
    limit = service.max_context
    room = limit - len(prompt)
    if room < (1 if max_tokens is None else max_tokens):
        raise ContextLengthExceeded(
            limit=limit,
            prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            param=prompt_param if room < 1 or max_tokens is None else param,
        )
    return room


def sampling_params(
    service: Service, request: GenerationRequest, *, max_tokens: int, num_logprobs: int
) -> SamplingParams:
    """What the engine is told about sampling.

    Raises:
        InvalidParameter: a token id is not in the vocabulary, a form cannot be enforced, ...
    """
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidParameter(
            f"'min_tokens' is {min_tokens}, but at most {max_tokens} tokens are generated.",
            param="min_tokens",
        )
    stop_token_ids = tuple(request.stop_token_ids or ())
    check_token_ids(service, stop_token_ids, "stop_token_ids")
    top_k = max(0, request.top_k or 0)
    if top_k >= service.tokenizer.vocab_size:
        top_k = 0
    top_p = 1.0 if request.top_p is None else request.top_p
    if top_p == 0:  # the smallest set that reaches a share of nothing: the best token
        top_k, top_p = 1, 1.0
    seed = secrets.randbits(63) if request.seed is None else request.seed & SEED_MASK
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=request.min_p or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        seed=seed,
        min_tokens=min_tokens,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=stop_token_ids,
        logit_bias=_logit_bias(service, request.logit_bias or {}),
        num_logprobs=num_logprobs,
        prompt_logprobs=-1 if request.prompt_logprobs is None else request.prompt_logprobs,
        grammar=output_grammar(service, request),
        processors=service.processor_uses(request),
        adapter=service.adapter,
        num_drafts=(
            service.num_drafts
            if request.prompt_lookup_num_tokens is None
            else request.prompt_lookup_num_tokens
        ),
        num_model_drafts=_model_drafts(service, request),
    )


def _model_drafts(service: Service, request: GenerationRequest) -> int:
    wanted = request.num_assistant_tokens
    if wanted and not service.num_model_drafts:
        raise InvalidParameter(
            "This server has no draft model (--draft-model), so 'num_assistant_tokens' must be 0 "
            "or left out.",
            param="num_assistant_tokens",
        )
    return service.num_model_drafts if wanted is None else wanted


def _logit_bias(service: Service, bias: dict[int, float]) -> tuple[tuple[int, float], ...]:
    if len(bias) > MAX_BIASED_TOKENS:
        raise InvalidParameter(
            f"'logit_bias' must not name more than {MAX_BIASED_TOKENS} tokens.", param="logit_bias"
        )
    check_token_ids(service, tuple(bias), "logit_bias")
    return tuple(bias.items())


def stop_strings(request: GenerationRequest) -> tuple[str, ...]:
    """Texts that end an answer. Raises InvalidParameter for too many or too long ones."""
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidParameter(
            f"'stop' must not have more than {MAX_STOP_STRINGS} entries.", param="stop"
        )
    if any(not 0 < len(text) <= MAX_STOP_CHARACTERS for text in stop):
        raise InvalidParameter(
            f"Entries of 'stop' must have 1 to {MAX_STOP_CHARACTERS} characters.", param="stop"
        )
    return stop


def _template_message(message: Message, path: str) -> dict[str, Any]:
    """A message as chat templates know it: plain values, absent fields left out."""
    if message.content is None and message.role != "assistant":
        raise InvalidParameter(f"'{path}.content' must not be null.", param=f"{path}.content")
    # `developer` is what OpenAI calls a system message for its reasoning models.
    role = "system" if message.role == "developer" else message.role
    result: dict[str, Any] = {"role": role, "content": _content(message.content, path)}
    if message.tool_calls:
        # Arguments stay JSON text, valid or not: a model wrote them, and the client only repeats.
        result["tool_calls"] = msgspec.to_builtins(message.tool_calls)
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            result[name] = value
    return result


def _content(content: str | list[ContentPart] | None, path: str) -> str | list[dict[str, str]]:
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for i, part in enumerate(content):
        where = f"{path}.content[{i}]"
        if part.type != "text":
            raise UnsupportedFeature(
                f"Content of type {part.type!r} is not supported; only 'text' is.", param=where
            )
        if part.text is None:
            raise InvalidParameter(f"'{where}.text' is missing.", param=f"{where}.text")
        parts.append({"type": "text", "text": part.text})
    return parts
