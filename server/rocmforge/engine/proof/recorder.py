"""Draws the stretches of steps that are verified, and keeps what the device computed in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol

from rocmforge.engine.ipc.messages import RecordSteps
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams, TokenEvent
from rocmforge.engine.ipc.prompt import TokenSpan
from rocmforge.engine.ipc.recorded import ROW_BYTES
from rocmforge.engine.proof.messages import Sample

LONGEST: Final = 8192
"""Tokens of a sequence: what is drawn behind them is not recorded."""
STRETCH: Final = 128
"""Steps of the engine that are drawn together: about as many as a short answer has tokens.

The verifier computes all tokens before a place, too, so shorter ones would cost it more for each
place; in longer ones, fewer requests would be looked at.
"""
_LEAD: Final = 4
"""Steps before the end of a stretch in which the next is told: the engine is ahead of its news."""

Send = Callable[[RecordSteps], None]


class Sink(Protocol):
    """Whoever a recorder tells of samples."""

    def hand_in(self, sample: Sample) -> None:
        """Takes a sample."""
        ...

    def admits(self, tokens: int) -> bool:
        """Returns whether a request in a drawn stretch is recorded; counts it if not.

        Args:
            tokens: of its prompt, and of its answer so far.
        """
        ...

    def skip(self) -> None:
        """Counts a request in a drawn stretch that cannot be computed again: it has embeddings."""
        ...

    def found_nan(self) -> None:
        """Hears at once that the model's output held a NaN, in any request."""
        ...


@dataclass(slots=True)
class _Entry:
    """A request that runs or waits."""

    sampling: SamplingParams
    num_prompt: int
    has_embeddings: bool
    tokens: list[int]  # of prompt and answer; of an embedding, placeholders
    rows: list[bytes] = field(default_factory=list)  # of the latest tokens, without a gap

    @property
    def has_begun(self) -> bool:
        """Whether the engine has given it a token, so that it does not wait for others."""
        return len(self.tokens) > self.num_prompt


class Recorder:
    """Sees every request and every event of an engine.

    The engine's steps are drawn in stretches. A keyed hash of a stretch's number decides, which no
    client can foresee, so each token has the same probability, in requests of any length. All
    requests of a drawn stretch are recorded together: a step costs the device as much for one of
    them as for all. If the verifier has room for some alone, the hash chooses them, too.

    Tokens are drawn as in any other step, as log-probabilities are those of the model, before
    penalties, masks and processors.

    Args:
        rate: share of the steps.
        key: of the hash.
        sink: where samples go.
    """

    def __init__(self, rate: float, key: bytes, sink: Sink) -> None:
        self._below = round(rate * (1 << 64))
        self._key = key
        self._sink = sink
        self._entries: dict[int, _Entry] = {}
        self._stretch = -1
        self._is_drawn = False
        self._chosen: set[int] = set()  # requests that are recorded in this stretch
        self._running: set[int] = set()  # those of them that become a sample, and those before

    @property
    def num_recorded(self) -> int:
        """The requests that run and are recorded."""
        return len(self._running)

    def advance(self, steps: int, send: Send) -> None:
        """Begins another stretch if it is time.

        Args:
            steps: that the engine has computed, as `Totals.steps`.
            send: says what is recorded, to the engine.
        """
        number = (steps + _LEAD) // STRETCH
        if number == self._stretch:
            return
        self._stretch, self._chosen = number, set()
        self._running = {each for each in self._running if self._entries[each].rows}
        self._is_drawn = self._hash(number) < self._below
        if not self._is_drawn:
            return
        for request_id in sorted(self._entries, key=lambda each: self._hash(number, each)):
            self._choose(request_id)
        if self._chosen:
            self._say(send)

    def open(self, request: GenerateRequest, send: Send) -> None:
        """Takes note of a request, before the engine has it."""
        sampling = request.sampling
        if sampling.pooling is not None or not sampling.max_tokens:
            return
        if self._stretch < 0:
            self.advance(0, send)
        self._entries[request.request_id] = _Entry(
            sampling=sampling,
            num_prompt=len(request.prompt),
            has_embeddings=not all(isinstance(each, TokenSpan) for each in request.prompt.spans),
            tokens=list(request.prompt.token_ids),
        )
        if self._is_drawn and self._choose(request.request_id):
            self._say(send)

    def note(self, event: TokenEvent) -> None:
        """Records an event."""
        entry = self._entries.get(event.request_id)
        if entry is None:
            return
        has_nan = event.is_without_token and _may_draw_anything(entry.sampling)
        if has_nan:
            self._sink.found_nan()
        if entry.has_embeddings:
            return
        room = LONGEST - len(entry.tokens)
        if event.recorded and room > 0:
            rows = event.recorded[: room * ROW_BYTES]
            entry.rows.append(rows)
            self._running.add(event.request_id)
        elif event.token_ids:
            self._hand_in(event.request_id, entry)  # behind the stretch
            if event.request_id in self._chosen:
                self._running.add(event.request_id)
        entry.tokens += event.token_ids
        if has_nan:
            self._hand_in(event.request_id, entry, is_broken=len(entry.tokens) < LONGEST)

    def close(self, request_id: int) -> None:
        """Hands in what was recorded of a request that has ended."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._hand_in(request_id, entry)
        self._chosen.discard(request_id)

    def _hash(self, *numbers: int) -> int:
        """Returns a number of 64 bits that nobody knows without the key."""
        words = b"".join(number.to_bytes(8, "little") for number in numbers)
        return int.from_bytes(blake2b(words, digest_size=8, key=self._key).digest(), "little")

    def _choose(self, request_id: int) -> bool:
        """Returns whether a request is recorded in this stretch."""
        entry = self._entries[request_id]
        if entry.has_embeddings:
            self._sink.skip()
            return False
        if not (entry.rows or self._sink.admits(len(entry.tokens))):
            return False
        self._chosen.add(request_id)
        if entry.has_begun:
            self._running.add(request_id)
        return True

    def _say(self, send: Send) -> None:
        until = (self._stretch + 1) * STRETCH
        send(RecordSteps(requests=tuple(sorted(self._chosen)), until=until))

    def _hand_in(self, request_id: int, entry: _Entry, *, is_broken: bool = False) -> None:
        """Hands in what was recorded up to the latest token, if anything."""
        self._running.discard(request_id)
        rows, entry.rows = b"".join(entry.rows), []
        count = len(rows) // ROW_BYTES
        if not (count or is_broken):
            return
        # A long sequence may have gone on behind what was recorded of it.
        stop = min(len(entry.tokens), LONGEST)
        self._sink.hand_in(
            Sample(
                number=request_id,
                tokens=tuple(entry.tokens[:stop]),
                first=stop - count,
                rows=rows,
                adapter=entry.sampling.adapter,
                is_broken=is_broken,
            )
        )


def _may_draw_anything(sampling: SamplingParams) -> bool:
    """Returns whether a request allows some token everywhere: if none is drawn, there is a NaN."""
    is_free = not (sampling.grammar or sampling.processors or sampling.thinking)
    return is_free and all(math.isfinite(bias) for _, bias in sampling.logit_bias)
