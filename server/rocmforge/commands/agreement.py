"""Agreement of a runner with the reference: the same tokens, computed in several ways."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs

from rocmforge.backend.protocol import Int32Array, Runner, StepInput, StepOutput
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams, TokenLogprob
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.errors import EngineError

NEAR_TIE: Final = 0.5
"""Nats: where the reference prefers a token by less, rounding may choose another."""
MAX_KL: Final = 0.02
"""Nats, the mean over all places."""
TOP_LOGPROBS: Final = 20
"""Tokens at each place whose log-probabilities are compared."""

_BATCH: Final = SchedulerLimits(max_sequences=4, max_batched_tokens=32, max_waiting=64)
_ONE_BY_ONE: Final = SchedulerLimits(max_sequences=1, max_batched_tokens=1, max_waiting=64)
_APART: Final = 3
"""Steps between the arrivals of prompts that are continued, so that prefills join decodes."""
_SMALLEST: Final = 1e-9

Prompts = Sequence[Sequence[int]]


class TopOne(NamedTuple):
    """At how many places of a kind the most probable token is the reference's."""

    kind: str
    same: int
    places: int

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.same / self.places


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One way of computing given tokens, compared with the reference at every place."""

    way: str
    top1: tuple[TopOne, ...]  # kinds of places that this way has
    mean_kl: float  # nats, of the reference relative to this
    wrong: tuple[str, ...]  # places where the tokens differ and the reference was sure

    @property
    def passed(self) -> bool:
        """Whether rounding explains every difference; NaN is none of its results."""
        return not self.wrong and self.mean_kl <= MAX_KL

    def __str__(self) -> str:
        shares = ", ".join(f"{one.share:.1%} of {one.places} {one.kind}" for one in self.top1)
        return f"top-1 {shares}; mean KL {self.mean_kl:.5f} of {MAX_KL}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Answers that each side made of its own tokens.

    Behind the first token that differs the inputs differ too, so the lengths are a matter of luck:
    only that first one can be wrong.
    """

    way: str
    same: tuple[int, ...]  # tokens before it, by prompt
    length: int
    wrong: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether rounding explains the first difference of each answer."""
        return not self.wrong

    def __str__(self) -> str:
        lengths = ", ".join(map(str, self.same))
        return f"the first {lengths} of {self.length} tokens are the reference's"


@dataclass(slots=True)
class Generated:
    """The answer to a request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


class _Place(NamedTuple):
    """A token that both sides predict after the same tokens."""

    name: str
    kind: str
    ours: TokenLogprob
    theirs: TokenLogprob

    @property
    def agrees(self) -> bool:
        return self.ours.top[0][0] == self.theirs.top[0][0]

    @property
    def wrong(self) -> str | None:
        """The failures here that rounding does not explain."""
        token, wanted = self.ours.top[0][0], self.theirs.top[0][0]
        lead = self.theirs.top[0][1] - dict(self.theirs.top).get(token, -math.inf)
        if self.agrees or lead < NEAR_TIE:
            return None
        return f"{self.name}: {token} instead of {wanted}, which leads by {lead:.2f} nats"


class _Forced:
    """A runner that draws the tokens of given texts, whatever it finds most probable.

    The number of a row's text is its seed. A token that is drawn on the device would be the
    runner's own, so steps do not overlap.
    """

    def __init__(self, runner: Runner, texts: Prompts) -> None:
        self._runner = runner
        self._texts = texts
        self._tokens: Int32Array = np.zeros(0, np.int32)
        self.info = replace(runner.info, pipeline_depth=1)
        self.close = runner.close

    def submit(self, step: StepInput) -> None:
        rows = zip(step.sampling.seed.tolist(), step.sampling.position.tolist(), strict=True)
        self._tokens = np.array([self._texts[text][at] for text, at in rows], np.int32)
        self._runner.submit(step)

    def collect(self) -> StepOutput:
        output = self._runner.collect()
        is_token = output.token_ids >= 0
        return replace(output, token_ids=np.where(is_token, self._tokens, output.token_ids))


def compare(
    candidate: Runner, reference: Runner, prompts: Prompts, max_tokens: int
) -> Iterator[Agreement | Continuation]:
    """Lets the reference continue the prompts greedily, and the candidate follow.

    Both predict every token of the prompts and answers: the candidate in prefills, alone token by
    token, and, of the answers, in decodes of four sequences that prefills join. Last, it answers
    by itself.

    Raises:
        EngineError: A runner failed.
    """
    expected = generate(reference, prompts, max_tokens)
    texts = [[*prompt, *one.tokens] for prompt, one in zip(prompts, expected, strict=True)]
    wanted = _score(reference, texts, _BATCH)
    for way, limits in (("prefill", _BATCH), ("decode, token by token", _ONE_BY_ONE)):
        yield _agreement(way, _scored(prompts, _score(candidate, texts, limits), wanted))
    forced = generate(_Forced(candidate, texts), prompts, max_tokens)
    yield _agreement("decode, batch of 4", _generated(forced, expected))
    yield _continuation("greedy, batch of 4", generate(candidate, prompts, max_tokens), expected)


def generate(runner: Runner, prompts: Prompts, max_tokens: int) -> list[Generated]:
    """Generates greedy continuations: prompts in chunks, mixed with decodes.

    Raises:
        EngineError: The runner failed.
    """
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, ignore_eos=True, num_logprobs=TOP_LOGPROBS
    )
    return _run(runner, prompts, sampling, _BATCH, apart=_APART)


def decode_speed(runner: Runner, prompt: Sequence[int], tokens: int) -> float:
    """Measures tokens per second of one sequence."""
    sampling = SamplingParams(max_tokens=tokens + 1, temperature=0.0, ignore_eos=True)
    _run(runner, [prompt], sampling, _BATCH)  # graphs are made the first time
    times: list[float] = []
    _run(runner, [prompt], sampling, _BATCH, times=times)
    return tokens / (times[-1] - times[-1 - tokens])


def _score(runner: Runner, texts: Prompts, limits: SchedulerLimits) -> list[list[TokenLogprob]]:
    """Scores every token but the first: its log-probability, and the top_logprobs."""
    sampling = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=TOP_LOGPROBS)
    return [one.prompt_logprobs for one in _run(runner, texts, sampling, limits)]


def _run(
    runner: Runner,
    prompts: Prompts,
    sampling: SamplingParams,
    limits: SchedulerLimits,
    *,
    apart: int = 0,
    times: list[float] | None = None,
) -> list[Generated]:
    """Runs all requests through the engine.

    Args:
        runner: computes.
        prompts: of the requests.
        sampling: of each of them; its seed becomes the prompt's number.
        limits: of a step.
        apart: steps between the arrivals of two requests.
        times: gets the seconds at which tokens arrived.
    """
    clock = count(1)
    core = EngineCore(runner, limits, lambda: next(clock))
    results = [Generated() for _ in prompts]
    number = 0
    while number <= apart * (len(prompts) - 1) or core.has_work:
        commands = [
            _request(index, prompt, sampling)
            for index, prompt in enumerate(prompts)
            if apart * index == number
        ]
        number += 1
        for event in core.step(commands).events:
            if event.error is not None:
                raise EngineError(event.error)
            result = results[event.request_id]
            result.tokens.extend(event.token_ids)
            result.logprobs.extend(event.logprobs or ())
            result.prompt_logprobs.extend(filter(None, event.prompt_logprobs or ()))
            if times is not None:
                times.extend(time.perf_counter() for _ in event.token_ids)
    return results


def _request(number: int, prompt: Sequence[int], sampling: SamplingParams) -> GenerateRequest:
    return GenerateRequest(
        request_id=number,
        prompt=token_prompt(prompt),
        sampling=structs.replace(sampling, seed=number),
        eos_ids=(),
        arrival_ns=0,
    )


def _scored(
    prompts: Prompts,
    got: Sequence[Sequence[TokenLogprob]],
    wanted: Sequence[Sequence[TokenLogprob]],
) -> list[_Place]:
    """Yields every token but the first of each text."""
    return [
        _Place(
            f"prompt {number}, token {index}",
            "prompt tokens" if index < len(prompt) else "generated tokens",
            ours,
            theirs,
        )
        for number, (prompt, our_list, their_list) in enumerate(
            zip(prompts, got, wanted, strict=True)
        )
        for index, (ours, theirs) in enumerate(zip(our_list, their_list, strict=True), start=1)
    ]


def _generated(got: Sequence[Generated], expected: Sequence[Generated]) -> list[_Place]:
    """Yields every token of the answers."""
    return [
        _output(number, index, ours, theirs)
        for number, (ours, theirs) in enumerate(zip(got, expected, strict=True))
        for index in range(len(theirs.tokens))
    ]


def _output(number: int, index: int, ours: Generated, theirs: Generated) -> _Place:
    name = f"prompt {number}, output {index}"
    return _Place(name, "generated tokens", ours.logprobs[index], theirs.logprobs[index])


def _agreement(way: str, places: Sequence[_Place]) -> Agreement:
    kinds = dict.fromkeys(place.kind for place in places)
    of_kind = {kind: [place.agrees for place in places if place.kind == kind] for kind in kinds}
    return Agreement(
        way=way,
        top1=tuple(TopOne(kind, sum(agree), len(agree)) for kind, agree in of_kind.items()),
        mean_kl=sum(kl_divergence(place.theirs, place.ours) for place in places) / len(places),
        wrong=tuple(wrong for place in places if (wrong := place.wrong) is not None),
    )


def _continuation(
    way: str, got: Sequence[Generated], expected: Sequence[Generated]
) -> Continuation:
    same, wrong = [], []
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        length = len(theirs.tokens)
        differ = (i for i in range(length) if ours.tokens[i] != theirs.tokens[i])
        first = next(differ, length)
        same.append(first)
        if first < length:
            wrong.append(_output(number, first, ours, theirs).wrong)
    return Continuation(
        way=way,
        same=tuple(same),
        length=len(expected[0].tokens),
        wrong=tuple(each for each in wrong if each is not None),
    )


def kl_divergence(wanted: TokenLogprob, got: TokenLogprob) -> float:
    """Computes the KL divergence, in nats, of two distributions with known top_logprobs.

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
