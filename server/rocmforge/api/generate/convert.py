"""From wire types to a `PreparedRequest`: everything a client can get wrong is answered here.

These functions are pure and may run in a worker thread. They raise `RequestError`s that name the
parameter; nothing has been submitted or sent by then.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from rocmforge.api.generate.checks import (
    check_at_once,
    check_common,
    check_output_logprobs,
    check_prompt_logprobs,
    check_room,
    check_token_ids,
)
from rocmforge.api.generate.constraints import output_grammar
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.processors import processor_uses
from rocmforge.api.generate.prompts import asker_key, request_prompt
from rocmforge.api.generate.schema import (
    ChatRequest,
    GenerationRequest,
)
from rocmforge.api.generate.tools import offered_tools, tool_use
from rocmforge.api.images.prompt_images import PromptImage
from rocmforge.engine.ipc.params import NO_KEY, SamplingParams, Share, Thinking
from rocmforge.errors import (
    InvalidParameter,
    UnsupportedFeature,
)
from rocmforge.fleet.model import ServedModel
from rocmforge.text.output.reasoning import THINK, ReasoningMarks, find_marks

# Tokens of reasoning by effort; those that are not here may think as long as they want.
THINKING_BUDGETS = {"none": 0, "minimal": 512, "low": 2048, "medium": 8192}
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 512
MAX_STOP_TOKENS = 1024
MAX_BIASED_TOKENS = 1024
SEED_MASK = (1 << 64) - 1


def prepare_chat(
    model: ServedModel,
    request: ChatRequest,
    images: Sequence[PromptImage] = (),
    share: Share = NO_KEY,
) -> PreparedRequest:
    """Prepares a chat completion, whose images have been read.

    Args:
        model: that is to answer.
        request: the body.
        images: of its conversation.
        share: whose request it is.

    Raises:
        RequestError: the request cannot be served as it was sent.
        NotReady: the model's limits are not known yet.
    """
    check_common(model, request)
    check_at_once(model, request.n or 1, "n")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise UnsupportedFeature("'best_of' is supported only if equal to 'n'.", param="best_of")
    if request.top_logprobs and not request.logprobs:
        raise InvalidParameter("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    num_logprobs = (request.top_logprobs or 0) if request.logprobs else -1
    tools = offered_tools(request)
    prompt = request_prompt(model, request, images, share)
    ids = prompt.id_array.data
    param = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    wanted = request.max_completion_tokens or request.max_tokens
    room = check_room(model, prompt, wanted, param=param, prompt_param="messages")
    if request.prompt_logprobs is not None:
        check_prompt_logprobs(len(prompt) * (1 + request.prompt_logprobs), "prompt_logprobs")
    check_output_logprobs(request.n or 1, wanted or room, num_logprobs, "top_logprobs")
    sampling = sampling_params(model, request, max_tokens=wanted or room, num_logprobs=num_logprobs)
    marks = find_marks(model.templates.select().source)
    reasoning = None if marks is None else _reasoning(model, ids, marks)
    whose = asker_key(request, share)
    use, grammar = tool_use(model, request, tools, ids, sampling.grammar, whose)
    sampling = msgspec.structs.replace(sampling, grammar=grammar)
    thinking = None
    if marks is not None and reasoning is not None:
        thinking = _thinking(model, request, marks, is_begun=reasoning == "begun")
    is_free = use is not None and use.has_free_text
    if sampling.grammar and thinking is None and not is_free:
        reasoning = None  # the grammar is that of the whole answer
    elif thinking is not None and (sampling.grammar or thinking.budget is not None):
        sampling = msgspec.structs.replace(sampling, thinking=thinking)
    return PreparedRequest(
        prompts=(prompt,),
        sampling=sampling,
        n=request.n or 1,
        stop=stop_strings(request),
        timeout_s=request.timeout,
        tools=use,
        reasoning=reasoning,
        marks=marks or THINK,
    )


def _reasoning(
    model: ServedModel, prompt: Sequence[int], marks: ReasoningMarks
) -> Literal["begun", "possible"] | None:
    tail = model.tokenizer.decode(prompt[-8:], skip_special=False).rstrip()
    if tail.endswith(marks.end):
        return None  # the prompt has closed it: the model is not to think
    return "begun" if tail.endswith(marks.begin + marks.title) else "possible"


def _thinking(
    model: ServedModel, request: ChatRequest, marks: ReasoningMarks, *, is_begun: bool
) -> Thinking | None:
    """Returns the section of reasoning before the answer; None if no tokens mark it."""
    budget = request.thinking_budget
    if budget is None and request.reasoning_effort is not None:
        budget = THINKING_BUDGETS.get(request.reasoning_effort)
    both = (marks.begin, marks.end)
    tokens = [model.tokenizer.encode(mark, parse_special=True) for mark in both]
    if any(len(ids) != 1 for ids in tokens):
        if request.thinking_budget is not None:
            raise UnsupportedFeature(
                f"This model's vocabulary has no token for {marks.end}, so a section of reasoning "
                "cannot be ended.",
                param="thinking_budget",
            )
        return None
    ((begin,), (end,)) = tokens
    return Thinking(begin=begin, end=end, is_begun=is_begun, budget=budget)


def sampling_params(
    model: ServedModel, request: GenerationRequest, *, max_tokens: int, num_logprobs: int
) -> SamplingParams:
    """Makes the parameters of sampling for the engine.

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
    if len(stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidParameter(
            f"'stop_token_ids' must not name more than {MAX_STOP_TOKENS} tokens.",
            param="stop_token_ids",
        )
    check_token_ids(model, stop_token_ids, "stop_token_ids")
    usual = model.sampling_defaults
    top_k = max(0, usual.top_k if request.top_k is None else request.top_k)
    if top_k >= model.tokenizer.vocab_size:
        top_k = 0
    top_p = usual.top_p if request.top_p is None else request.top_p
    if np.float32(top_p) == 0:  # the smallest set that reaches a share of nothing: the best token
        top_k, top_p = 1, 1.0
    seed = secrets.randbits(63) if request.seed is None else request.seed & SEED_MASK
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=usual.temperature if request.temperature is None else request.temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=usual.min_p if request.min_p is None else request.min_p,
        repetition_penalty=request.repetition_penalty or usual.repetition_penalty,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        seed=seed,
        min_tokens=min_tokens,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=stop_token_ids,
        logit_bias=_logit_bias(model, request.logit_bias or {}),
        num_logprobs=num_logprobs,
        prompt_logprobs=-1 if request.prompt_logprobs is None else request.prompt_logprobs,
        grammar=output_grammar(model, request),
        processors=processor_uses(model, request),
        adapter=model.adapter_called(request.model),
        cache_salt=request.cache_salt or "",
        prompt_lookup_tokens=_lookup_tokens(model, request),
        draft_model_tokens=_model_drafts(model, request),
    )


def _lookup_tokens(model: ServedModel, request: GenerationRequest) -> int:
    wanted = request.prompt_lookup_num_tokens
    if wanted and not model.checks_drafts:
        raise InvalidParameter(
            f"The model {model.name} has states, and the server was started without draft tokens "
            "for it (--prompt-lookup-tokens): 'prompt_lookup_num_tokens' must be 0 or left out.",
            param="prompt_lookup_num_tokens",
        )
    return model.prompt_lookup_tokens if wanted is None else wanted


def _model_drafts(model: ServedModel, request: GenerationRequest) -> int:
    wanted = request.num_assistant_tokens
    if wanted and not model.draft_model_tokens:
        raise InvalidParameter(
            "This server has no draft model (--draft-model), so 'num_assistant_tokens' must be 0 "
            "or left out.",
            param="num_assistant_tokens",
        )
    return model.draft_model_tokens if wanted is None else wanted


def _logit_bias(model: ServedModel, bias: dict[int, float]) -> tuple[tuple[int, float], ...]:
    if len(bias) > MAX_BIASED_TOKENS:
        raise InvalidParameter(
            f"'logit_bias' must not name more than {MAX_BIASED_TOKENS} tokens.", param="logit_bias"
        )
    check_token_ids(model, tuple(bias), "logit_bias")
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
