"""Draws the requests that are verified, and records what the device computed for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol

from msgspec import structs

from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams, TokenEvent, TokenLogprob
from rocmforge.engine.ipc.prompt import TokenSpan
from rocmforge.engine.proof.messages import Sample

TOP: Final = 20
"""The most probable tokens whose log-probabilities are recorded at each place."""
LONGEST: Final = 8192
"""Tokens of a sequence: what is drawn behind them is not recorded."""


class Sink(Protocol):
    """Whoever a recorder tells of samples."""

    def hand_in(self, sample: Sample) -> None:
        """Takes the sample of a request that has ended."""
        ...

    def admits(self, tokens: int) -> bool:
        """Returns whether a request that was drawn is recorded; counts it if not.

        Args:
            tokens: of its prompt.
        """
        ...

    def skip(self) -> None:
        """Counts a request that was drawn and cannot be computed again: it has embeddings."""
        ...

    def found_nan(self) -> None:
        """Hears at once that the model's output held a NaN, in any request."""
        ...


@dataclass(slots=True)
class _Entry:
    """A request that runs."""

    request: GenerateRequest  # as it was made
    tokens: list[int]  # of prompt and answer
    is_drawn: bool
    places: list[TokenLogprob] = field(default_factory=list)


class Recorder:
    """Sees every request and every event of an engine.

    A request is drawn with a probability that is the same for all; a keyed hash of its number
    decides, which no client can foresee. All its tokens are recorded, unless nobody could compute
    them again soon: a step is slower where log-probabilities are wanted. Tokens are drawn as for
    any other, as log-probabilities are those of the model, before penalties, masks and processors.

    Args:
        rate: share of the requests.
        key: of the hash.
        sink: where samples go.
    """

    def __init__(self, rate: float, key: bytes, sink: Sink) -> None:
        self._below = round(rate * (1 << 64))
        self._key = key
        self._sink = sink
        self._entries: dict[int, _Entry] = {}

    @property
    def num_recorded(self) -> int:
        """The requests that run and are recorded."""
        return sum(entry.is_drawn for entry in self._entries.values())

    def open(self, request: GenerateRequest) -> GenerateRequest:
        """Takes note of a request; returns it as the engine should see it."""
        sampling = request.sampling
        if sampling.pooling is not None or not sampling.max_tokens:
            return request
        is_drawn = self._draws(request.request_id)
        if not all(isinstance(span, TokenSpan) for span in request.prompt.spans):
            if is_drawn:
                self._sink.skip()
            return request
        tokens = list(request.prompt.token_ids)
        is_drawn = is_drawn and self._sink.admits(len(tokens))
        self._entries[request.request_id] = _Entry(request, tokens, is_drawn)
        if not is_drawn:
            return request
        most = max(sampling.num_logprobs, TOP)
        return structs.replace(request, sampling=structs.replace(sampling, num_logprobs=most))

    def note(self, event: TokenEvent) -> TokenEvent:
        """Records an event; returns it as the request asked for it."""
        entry = self._entries.get(event.request_id)
        if entry is None:
            return event
        if entry.is_drawn and event.logprobs is not None:
            room = max(0, LONGEST - len(entry.tokens))
            entry.places += [_cut(each, TOP) for each in event.logprobs[:room]]
            event = structs.replace(event, logprobs=_asked(event.logprobs, entry.request.sampling))
        entry.tokens += event.token_ids
        if event.is_without_token and _may_draw_anything(entry.request.sampling):
            self._sink.found_nan()
            self._end(event.request_id, has_nan=True)
        return event

    def close(self, request_id: int) -> None:
        """Hands in what was recorded of a request that has ended."""
        self._end(request_id, has_nan=False)

    def _draws(self, request_id: int) -> bool:
        digest = blake2b(request_id.to_bytes(8, "little"), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "little") < self._below

    def _end(self, request_id: int, *, has_nan: bool) -> None:
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return
        is_broken = has_nan and len(entry.tokens) < LONGEST
        first = len(entry.request.prompt) if entry.is_drawn else len(entry.tokens)
        stop = len(entry.tokens) if is_broken else first + len(entry.places)
        if entry.places or is_broken:
            self._sink.hand_in(
                Sample(
                    number=request_id,
                    tokens=tuple(entry.tokens[:stop]),
                    first=first,
                    places=tuple(entry.places),
                    adapter=entry.request.sampling.adapter,
                    is_broken=is_broken,
                )
            )


def _cut(found: TokenLogprob, count: int) -> TokenLogprob:
    return structs.replace(found, top=found.top[:count])


def _asked(
    found: tuple[TokenLogprob, ...], sampling: SamplingParams
) -> tuple[TokenLogprob, ...] | None:
    """Returns the log-probabilities that the request itself asked for."""
    if sampling.num_logprobs < 0:
        return None
    return tuple(_cut(each, sampling.num_logprobs) for each in found)


def _may_draw_anything(sampling: SamplingParams) -> bool:
    """Returns whether a request allows some token everywhere: if none is drawn, there is a NaN."""
    is_free = not (sampling.grammar or sampling.processors or sampling.thinking)
    return is_free and all(math.isfinite(bias) for _, bias in sampling.logit_bias)
