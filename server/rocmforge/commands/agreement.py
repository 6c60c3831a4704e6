"""How far a runner agrees with the reference: the same tokens, computed in three ways."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from rocmforge.backend.protocol import Runner
from rocmforge.engine.core import EngineCore
from rocmforge.engine.messages import Submit
from rocmforge.engine.params import GenerateRequest, SamplingParams, TokenLogprob
from rocmforge.engine.plan import SchedulerLimits
from rocmforge.errors import EngineError

NEAR_TIE: Final = 0.5
"""Nats: where the reference prefers a token by less, rounding may choose another."""
MAX_KL: Final = 0.02
"""Nats, the mean over all tokens."""
ALTERNATIVES: Final = 20
"""Tokens at each place whose log-probabilities are compared."""

_BATCH: Final = SchedulerLimits(max_sequences=4, max_batched_tokens=32, max_waiting=64)
_ONE_BY_ONE: Final = SchedulerLimits(max_sequences=1, max_batched_tokens=1, max_waiting=64)
_SMALLEST: Final = 1e-9

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One way of computing some tokens, compared with the reference."""

    way: str
    tokens: int
    top1: float  # share of places with the reference's most probable token
    mean_kl: float  # nats, of the reference relative to this
    wrong: tuple[str, ...]  # places where the tokens differ and the reference was sure

    @property
    def passed(self) -> bool:
        """Whether rounding explains every difference; NaN is none of its results."""
        return not self.wrong and self.mean_kl <= MAX_KL


@dataclass(slots=True)
class Generated:
    """What a request got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


def compare(
    candidate: Runner, reference: Runner, prompts: Prompts, max_tokens: int
) -> Iterator[Agreement]:
    """Lets the reference continue the prompts greedily, and the candidate follow.

    Raises:
        EngineError: A runner failed.
    """
    expected = generate(reference, prompts, max_tokens)
    texts = [[*prompt, *one.tokens] for prompt, one in zip(prompts, expected, strict=True)]
    wanted = _score(reference, texts, _BATCH)
    yield _scored("prefill", _score(candidate, texts, _BATCH), wanted)
    yield _scored("decode, token by token", _score(candidate, texts, _ONE_BY_ONE), wanted)
    yield _continued(generate(candidate, prompts, max_tokens), expected)


def generate(runner: Runner, prompts: Prompts, max_tokens: int) -> list[Generated]:
    """Greedy continuations: prompts in chunks, mixed with decodes.

    Raises:
        EngineError: The runner failed.
    """
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, ignore_eos=True, num_logprobs=ALTERNATIVES
    )
    return _run(runner, prompts, sampling, _BATCH)


def decode_speed(runner: Runner, prompt: Sequence[int], tokens: int) -> float:
    """Tokens per second of one sequence."""
    sampling = SamplingParams(max_tokens=tokens + 1, temperature=0.0, ignore_eos=True)
    _run(runner, [prompt], sampling, _BATCH)  # graphs are made the first time
    times: list[float] = []
    _run(runner, [prompt], sampling, _BATCH, times)
    return tokens / (times[-1] - times[-1 - tokens])


def _score(runner: Runner, texts: Prompts, limits: SchedulerLimits) -> list[list[TokenLogprob]]:
    """Of every token but the first: its log-probability, and the most probable alternatives."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=ALTERNATIVES)
    return [one.prompt_logprobs for one in _run(runner, texts, sampling, limits)]


def _run(
    runner: Runner,
    prompts: Prompts,
    sampling: SamplingParams,
    limits: SchedulerLimits,
    times: list[float] | None = None,
) -> list[Generated]:
    """Everything through the engine; `times` gets the seconds at which tokens arrived."""
    clock = count(1)
    core = EngineCore(runner, limits, lambda: next(clock))
    results = [Generated() for _ in prompts]
    commands: Sequence[Submit] = [
        Submit(
            request=GenerateRequest(
                request_id=index,
                prompt_ids=tuple(prompt),
                sampling=sampling,
                eos_ids=(),
                arrival_ns=0,
            )
        )
        for index, prompt in enumerate(prompts)
    ]
    while commands or core.has_work:
        for event in core.step(commands).events:
            if event.error is not None:
                raise EngineError(event.error)
            result = results[event.request_id]
            result.tokens.extend(event.token_ids)
            result.logprobs.extend(event.logprobs or ())
            result.prompt_logprobs.extend(event.prompt_logprobs or ())
            if times is not None:
                times.extend(time.perf_counter() for _ in event.token_ids)
        commands = ()
    return results


def _scored(
    way: str, got: Sequence[Sequence[TokenLogprob]], wanted: Sequence[Sequence[TokenLogprob]]
) -> Agreement:
    places = [
        (f"prompt {prompt}, token {index + 1}", ours, theirs)
        for prompt, (our_list, their_list) in enumerate(zip(got, wanted, strict=True))
        for index, (ours, theirs) in enumerate(zip(our_list, their_list, strict=True))
    ]
    return _agreement(way, places)


def _continued(got: Sequence[Generated], expected: Sequence[Generated]) -> Agreement:
    """Each continuation up to the first token that differs: behind it the inputs differ too."""
    places = []
    for prompt, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        for index, (token, wanted) in enumerate(zip(ours.tokens, theirs.tokens, strict=True)):
            name = f"prompt {prompt}, output {index}"
            places.append((name, ours.logprobs[index], theirs.logprobs[index]))
            if token != wanted:
                break
    return _agreement("greedy, batch of 4", places)


def _agreement(way: str, places: Sequence[tuple[str, TokenLogprob, TokenLogprob]]) -> Agreement:
    agreed = 0
    divergence = 0.0
    wrong = []
    for name, ours, theirs in places:
        divergence += kl_divergence(theirs, ours)
        token, wanted = ours.top[0][0], theirs.top[0][0]
        lead = theirs.top[0][1] - dict(theirs.top).get(token, -math.inf)
        if token == wanted:
            agreed += 1
        elif lead >= NEAR_TIE:
            wrong.append(f"{name}: {token} instead of {wanted}, which leads by {lead:.2f} nats")
    return Agreement(
        way=way,
        tokens=len(places),
        top1=agreed / len(places),
        mean_kl=divergence / len(places),
        wrong=tuple(wrong),
    )


def kl_divergence(wanted: TokenLogprob, got: TokenLogprob) -> float:
    """Of two distributions of which the most probable tokens are known, in nats.

    The tokens that stand in only one of the lists, or in neither, are taken together. That is a
    lower bound, and close: what is rare in both adds little (the log-sum inequality).
    """
    theirs, ours = dict(wanted.top), dict(got.top)
    shared = theirs.keys() & ours.keys()
    pairs = [(math.exp(theirs[token]), math.exp(ours[token])) for token in shared]
    pairs.append((1 - sum(p for p, _ in pairs), 1 - sum(q for _, q in pairs)))
    return sum(
        max(p, _SMALLEST) * math.log(max(p, _SMALLEST) / max(q, _SMALLEST)) for p, q in pairs
    )
