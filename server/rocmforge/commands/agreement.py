"""Agreement of a runner with the reference: the same tokens, computed in several ways.

Of a model that takes images, the rows of embeddings that its tower makes of a made-up picture, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import structs

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.backend.protocol import Runner
from rocmforge.backend.step import StepInput, StepOutput
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams, TokenLogprob
from rocmforge.engine.ipc.prompt import (
    EmbeddingSpan,
    Prompt,
    embedding_span,
    image_span,
    token_prompt,
    token_span,
)
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.waiting.images import image_step
from rocmforge.errors import EngineError
from rocmforge.models.vision.config import ProcessorConfig, VisionConfig
from rocmforge.pixels.processors.patches import tile_of

NEAR_TIE: Final = 0.5
"""Nats: where the reference prefers a token by less, rounding may choose another."""
MAX_KL: Final = 0.02
"""Nats, the mean over all places."""
TOP_LOGPROBS: Final = 20
"""Tokens at each place whose log-probabilities are compared."""

MAX_ROW_ERROR: Final = 0.02
"""Length of the difference of two rows of embeddings, relative to that of the reference's."""
_MAX_ROUNDED_ERROR: Final = 0.05
"""The same where activations are rounded to meet quantised weights."""
MOST_PATCHES: Final = 1024
"""Of the made-up picture that a tower is checked with: the reference is slow."""
_MOST_ROWS: Final = 48
_SQUARES: Final = (6, 8)
"""Rows of embeddings down and across, of a picture that keeps its shape."""
_SHOWN: Final = SchedulerLimits(
    max_sequences=4, max_batched_tokens=64, max_waiting=64, whole_rows=_MOST_ROWS
)
_BATCH: Final = SchedulerLimits(max_sequences=4, max_batched_tokens=32, max_waiting=64)
_ONE_BY_ONE: Final = SchedulerLimits(max_sequences=1, max_batched_tokens=1, max_waiting=64)
_APART: Final = 3
"""Steps between the arrivals of prompts that are continued, so that prefills join decodes."""
_SMALLEST: Final = 1e-9

Prompts = Sequence[Sequence[int] | Prompt]
Texts = Sequence[Sequence[int]]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerAgreement:
    """The rows that a tower made of a picture, compared with the reference's."""

    way: str
    rows: int
    patches: int
    worst: float  # error of a row, as of `MAX_ROW_ERROR`
    limit: float

    @property
    def wrong(self) -> tuple[str, ...]:
        """Nothing beside the error; there is no place to name."""
        return ()

    @property
    def passed(self) -> bool:
        """Whether rounding explains the difference; NaN is none of its results."""
        return self.worst <= self.limit

    def __str__(self) -> str:
        return (
            f"{self.rows} rows of {self.patches} patches, worst error {self.worst:.1e} of "
            f"{self.limit:.1e}"
        )


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

    def __init__(self, runner: Runner, texts: Texts) -> None:
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
    candidate: Runner, reference: Runner, prompts: Texts, max_tokens: int
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


def compare_towers(
    candidate: Runner, reference: Runner, vision: VisionConfig, *, is_quantised: bool = False
) -> tuple[TowerAgreement, EmbeddingSpan]:
    """Has two runners of a tower look at the same made-up picture.

    Args:
        candidate: Is to be right.
        reference: Is.
        vision: How the model takes images.
        is_quantised: Whether some of the tower's weights are.

    Returns:
        How far apart their rows are, and the reference's as a part of a prompt.

    Raises:
        EngineError: A runner failed.
    """
    processor = vision.processor
    tile = tile_of(_picture(processor), processor)
    step = _some_rows(image_step(0, image_span(tile, vision.placeholder), processor))
    found, expected = _rows_of(candidate, step), _rows_of(reference, step)
    lengths = np.linalg.norm(expected, axis=1)
    errors = np.linalg.norm(found - expected, axis=1) / np.maximum(lengths, _SMALLEST)
    agreement = TowerAgreement(
        way="tower",
        rows=len(expected),
        patches=step.num_tokens,
        worst=float(errors.max()),
        limit=_MAX_ROUNDED_ERROR if is_quantised else MAX_ROW_ERROR,
    )
    shown = structs.replace(
        embedding_span(expected, vision.placeholder),
        both_ways=vision.both_ways,
        grid=_SQUARES if processor.has_axes else (0, 0),
    )
    return agreement, shown


def compare_shown(
    candidate: Runner,
    reference: Runner,
    shown: EmbeddingSpan,
    texts: tuple[Sequence[int], Sequence[int]],
) -> Agreement:
    """Has both predict the tokens of two texts with rows of a picture between them.

    Raises:
        EngineError: A runner failed.
    """
    before, behind = map(token_span, texts)
    prompts = [Prompt(spans=(before, shown, behind))]
    got, wanted = (_score(each, prompts, _SHOWN)[0] for each in (candidate, reference))
    places = [
        _Place(f"text around a picture, token {index}", "prompt tokens", ours, theirs)
        for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True), start=1)
    ]
    return _agreement("around a picture", places)


def _picture(processor: ProcessorConfig) -> npt.NDArray[np.uint8]:
    """Returns waves of colour with noise, as large as a tile, or of a few squares."""
    side = processor.patch * processor.merge
    rows, columns = (one // processor.merge for one in processor.grid)
    if not processor.tile:
        rows, columns = _SQUARES
    rng = np.random.default_rng(0)
    down, right = np.mgrid[0 : rows * side, 0 : columns * side] / (columns * side)
    waves = [np.sin(speed * down + 2 * speed * right) for speed in (3, 5, 8)]
    noise = rng.integers(-30, 30, (rows * side, columns * side, 3))
    return np.clip(127 + 90 * np.stack(waves, axis=-1) + noise, 0, 255).astype(np.uint8)


def _some_rows(step: StepInput) -> StepInput:
    """Returns a step for some rows of a large tile, from its first to its last.

    What attends to fewer patches makes other rows, but both sides do the same.
    """
    assert not len(step.place_ids) or len(step.hidden_ranges) <= _MOST_ROWS, "its picture is small"
    ranges = step.hidden_ranges
    each = int(np.diff(ranges[0])[0])
    most = min(_MOST_ROWS, MOST_PATCHES // each)
    if len(ranges) <= most:
        return step
    ranges = ranges[np.linspace(0, len(ranges) - 1, most).astype(np.intp)]
    kept = np.ones(step.num_tokens, np.bool_)
    kept[step.hidden_ranges[0, 0] : step.hidden_ranges[-1, 1]] = False
    for start, end in ranges:
        kept[start:end] = True
    place = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
    count = int(place[-1])
    return replace(
        step,
        token_ids=step.token_ids[kept],
        token_source=step.token_source[kept],
        positions=np.arange(count, dtype=np.int32),
        slot_mapping=step.slot_mapping[kept],
        query_start=np.array([0, count], np.int32),
        context_len=np.array([count], np.int32),
        hidden_ranges=place[ranges],
        patches=step.patches[kept],
    )


def _rows_of(tower: Runner, step: StepInput) -> Float32Array:
    tower.submit(step)
    hidden = tower.collect().hidden
    assert hidden is not None, "a tower gives rows of embeddings"
    return hidden


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


def _request(
    number: int, prompt: Sequence[int] | Prompt, sampling: SamplingParams
) -> GenerateRequest:
    return GenerateRequest(
        request_id=number,
        prompt=prompt if isinstance(prompt, Prompt) else token_prompt(prompt),
        sampling=structs.replace(sampling, seed=number),
        eos_ids=(),
        arrival_ns=0,
    )


def _scored(
    prompts: Texts,
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
