"""From the body of /v1/completions to a `PreparedRequest`, as `convert.prepare_chat` for chats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from rocmforge.api.generate.checks import (
    check_at_once,
    check_common,
    check_output_logprobs,
    check_prompt_logprobs,
    check_room,
    check_token_ids,
)
from rocmforge.api.generate.convert import sampling_params, stop_strings
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.schema import CompletionRequest
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.errors import InvalidParameter, UnsupportedFeature
from rocmforge.fleet.model import ServedModel

DEFAULT_TOKENS = 16  # OpenAI's


def prepare_completion(model: ServedModel, request: CompletionRequest) -> PreparedRequest:
    """Prepares a text completion. Raises like `prepare_chat`."""
    check_common(model, request)
    max_tokens = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and not request.echo:
        raise InvalidParameter("'max_tokens' of 0 needs 'echo'.", param="max_tokens")
    n = _sequences_per_prompt(request)
    num_logprobs = -1 if request.logprobs is None else request.logprobs
    # The whole prompt is the client's: it may spell out a template with special tokens.
    encode = partial(model.tokenizer.encode, parse_special=True)
    prompts = token_prompts(
        model,
        request.prompt,
        "prompt",
        encode=encode,
        check_count=lambda count: check_at_once(model, count * n, "prompt" if n == 1 else "n"),
    )
    if request.suffix:
        prompts = tuple(_infill(model, request, prompt) for prompt in prompts)
    for prompt in prompts:
        check_room(model, prompt, max_tokens, param="max_tokens", prompt_param="prompt")
    _check_logprobs(request, prompts, max_tokens)
    sampling = sampling_params(model, request, max_tokens=max_tokens, num_logprobs=num_logprobs)
    if request.echo:
        wanted = max(num_logprobs, sampling.prompt_logprobs)
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=wanted)
    if n > (request.n or 1):  # the best are found by their log-probabilities
        sampling = msgspec.structs.replace(sampling, num_logprobs=max(num_logprobs, 0))
    return PreparedRequest(
        prompts=tuple(map(token_prompt, prompts)),
        sampling=sampling,
        n=n,
        stop=stop_strings(request),
        timeout_s=request.timeout,
    )


def _check_logprobs(
    request: CompletionRequest, prompts: Sequence[tuple[int, ...]], max_tokens: int
) -> None:
    n = request.n or 1
    repeated = sum(map(len, prompts)) * n
    echoed = request.logprobs if request.echo else None
    for wanted, param in ((request.prompt_logprobs, "prompt_logprobs"), (echoed, "logprobs")):
        if wanted is not None:
            check_prompt_logprobs(repeated * (1 + wanted), param)
    if request.logprobs is not None:
        check_output_logprobs(len(prompts) * n, max_tokens, request.logprobs, "logprobs")


def _sequences_per_prompt(request: CompletionRequest) -> int:
    n = request.n or 1
    if request.best_of is None:
        return n
    if request.best_of < n:
        raise InvalidParameter(
            f"'best_of' is {request.best_of}, fewer than the {n} choices of 'n'.", param="best_of"
        )
    if request.best_of > n and request.stream:
        raise InvalidParameter(
            "'best_of' above 'n' cannot be streamed: the best is known at the end.",
            param="best_of",
        )
    return request.best_of


def token_prompts(
    model: ServedModel,
    given: str | list[str | int | list[int]],
    param: str,
    *,
    encode: Callable[[str], Sequence[int]],
    check_count: Callable[[int], None] = lambda count: None,
) -> tuple[tuple[int, ...], ...]:
    """Returns all entries as token ids: a text, token ids, or a list of either.

    Args:
        model: knows the vocabulary.
        given: the entries.
        param: what the field is called.
        encode: makes token ids of a text.
        check_count: raises if there are too many entries, before any of them is looked at.

    Raises:
        InvalidParameter: there are none, they are empty or mixed, or no token ids.
    """
    if isinstance(given, str):
        entries: list[str | list[int]] = [given]
    elif given and all(isinstance(entry, int) for entry in given):
        entries = [[entry for entry in given if isinstance(entry, int)]]
    else:
        entries = [entry for entry in given if not isinstance(entry, int)]
        if len({type(entry) for entry in given}) != 1:
            raise InvalidParameter(
                f"'{param}' must be a string, a list of token ids, a list of strings, or a list "
                "of lists of token ids.",
                param=param,
            )
    check_count(len(entries))
    return tuple(_token_prompt(model, entry, param, encode) for entry in entries)


def _token_prompt(
    model: ServedModel, entry: str | list[int], param: str, encode: Callable[[str], Sequence[int]]
) -> tuple[int, ...]:
    if isinstance(entry, str):
        ids = tuple(encode(entry))
    else:
        check_token_ids(model, entry, param)
        ids = tuple(entry)
    if not ids:
        raise InvalidParameter(f"'{param}' must not be empty.", param=param)
    return ids


def _infill(
    model: ServedModel, request: CompletionRequest, before: tuple[int, ...]
) -> tuple[int, ...]:
    """Makes the prompt for the text between `before` and the suffix."""
    tokenizer = model.tokenizer
    if tokenizer.infill is None:
        raise UnsupportedFeature(
            "'suffix' needs a model with tokens for fill-in-the-middle; this one has none.",
            param="suffix",
        )
    if request.echo:
        raise UnsupportedFeature("'suffix' cannot be combined with 'echo'.", param="suffix")
    assert request.suffix is not None
    start = tokenizer.start_ids
    bos = start if before[: len(start)] == start else ()
    behind = tokenizer.encode(request.suffix, parse_special=False, add_bos=False)
    return (*bos, *tokenizer.infill.prompt(before[len(bos) :], behind))
