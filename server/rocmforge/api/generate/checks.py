"""Mistakes that requests of several endpoints can have; all raise `RequestError`s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from rocmforge.api.generate.schema import GenerationRequest
from rocmforge.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    RequestError,
    UnsupportedFeature,
)
from rocmforge.fleet.model import ServedModel
from rocmforge.models.pooling import PoolingType

T = TypeVar("T")

MAX_PROMPT_LOGPROBS = 1_000_000
"""In one answer: about 75 MB of JSON. They are quickly computed."""
MAX_OUTPUT_LOGPROBS = 4_000_000
"""In an answer with several choices. Each token takes a step."""

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


def check_token_ids(model: ServedModel, ids: Sequence[int], param: str) -> None:
    """Raises InvalidParameter for an id that is not in the vocabulary."""
    size = model.tokenizer.vocab_size
    if ids and (min(ids) < 0 or max(ids) >= size):
        wrong = next(i for i in ids if not 0 <= i < size)
        raise InvalidParameter(
            f"Token id {wrong} in '{param}' is not in the vocabulary of {size} tokens.",
            param=param,
        )


def check_common(model: ServedModel, request: GenerationRequest) -> None:
    """Raises what any request for tokens can get wrong besides its prompt."""
    if not model.generates:
        ranks = model.pooling is PoolingType.RANK
        what = "only ranks" if model.causal else "is an encoder"
        raise UnsupportedFeature(
            f"The model {model.name!r} {what} and generates no text. "
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


def check_at_once(model: ServedModel, sequences: int, param: str) -> None:
    """Raises InvalidParameter for more sequences than there is ever room for."""
    if sequences > model.max_at_once:
        raise InvalidParameter(
            f"The request asks for {sequences} sequences (prompts times 'n'), but this server "
            f"takes {model.max_at_once} at once.",
            param=param,
        )


def check_room(
    model: ServedModel,
    prompt: Sized,
    max_tokens: int | None,
    *,
    param: str,
    prompt_param: str,
) -> int:
    """Returns how many tokens may follow `prompt`; raises if none, or fewer than wanted."""
    limit = model.max_context
    room = limit - len(prompt)
    if room < (1 if max_tokens is None else max_tokens):
        raise ContextLengthExceeded(
            limit=limit,
            prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            param=prompt_param if room < 1 or max_tokens is None else param,
        )
    return room


def check_prompt_logprobs(count: int, param: str) -> None:
    """Raises InvalidParameter for more log-probabilities of prompt tokens than one answer may have.

    Args:
        count: prompt tokens times (1 + alternatives) times the choices that repeat them.
        param: the field that asks for them.
    """
    if count > MAX_PROMPT_LOGPROBS:
        raise InvalidParameter(
            f"The answer would have {count} log-probabilities of prompt tokens (tokens of the "
            f"prompts, times 1 + '{param}', times 'n'), but one answer may have "
            f"{MAX_PROMPT_LOGPROBS}. Lower '{param}' or 'n', or send shorter prompts.",
            param=param,
        )


def check_output_logprobs(choices: int, max_tokens: int, num_logprobs: int, param: str) -> None:
    """Raises InvalidParameter for more log-probabilities of output tokens than an answer may have.

    One sequence alone may always have what it asks for: the context limits it.

    Args:
        choices: of all prompts.
        max_tokens: of each choice.
        num_logprobs: alternatives of each token; -1 = there are no log-probabilities.
        param: the field that asks for them.
    """
    count = choices * max_tokens * (1 + num_logprobs)
    if choices > 1 and count > MAX_OUTPUT_LOGPROBS:
        raise InvalidParameter(
            f"The answer could have {count} log-probabilities (choices, times tokens, times 1 + "
            f"'{param}'), but one with several choices may have {MAX_OUTPUT_LOGPROBS}. Lower "
            f"'{param}', 'n', or the number of tokens.",
            param=param,
        )
