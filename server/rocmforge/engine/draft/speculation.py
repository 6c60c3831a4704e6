"""Speculative decoding: which sequences get draft tokens, from where and how many, in each step.

Outputs stay exact whatever is decided here, because the step draws every token anew
(`schedule.results`). This is about time only. For a sequence whose draft tokens are accepted at a
rate r, k of them bring 1 + r + ... + r^k tokens in one step. That step takes as long as steps of so
many tokens took lately, and the draft model takes one step for each draft token. The k is chosen
that gives the most tokens per time of all running sequences. It is 0 where checking costs more than
it saves: when many sequences run, their tokens fill the device already.

What counts is the time from one result to the next. A step that checks begins when the host has
seen the one before it, while the device waits; others are two in flight, and it does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import StepOutput
from rocmforge.engine.draft.drafter import Drafter
from rocmforge.engine.draft.lookup import look_up
from rocmforge.engine.draft.step_times import StepTimes
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.sequence.drafting import Drafting, DraftMethod
from rocmforge.engine.sequence.sequence import Sequence

_WORTH_CHECKING: Final = 1 / 8
"""The least probability with which a draft token has to be accepted."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """Draft tokens that one sequence could have."""

    sequence: Sequence
    drafting: Drafting
    method: DraftMethod
    found: Int32Array  # by prompt lookup, [K]
    limit: int  # how many are worth checking


class Speculation:
    """The decision for all sequences, and how long steps take.

    Args:
        drafter: the draft model or the predictor; None = there is only prompt lookup.
        clock: monotonic nanoseconds.
        room: draft tokens that a step can check; None = as many as there are.
    """

    def __init__(
        self, drafter: Drafter | None, clock: Callable[[], int], room: int | None = None
    ) -> None:
        self._drafter = drafter
        self._clock = clock
        self._room = room
        self._began_ns = 0  # when the result before the next one came, and later by all drafting
        # Of steps that read no prompts, by number of tokens. Without draft tokens a step may take
        # another way through the backend (a captured graph): these are no points of one line.
        self._plain = StepTimes()
        self._checking = StepTimes()

    def draft(self, running: list[Sequence]) -> None:
        """Chooses draft tokens for the sequences that will decode in the next step.

        Raises:
            EngineError: the device of the draft model failed.
        """
        offers = [offer for seq in running if (offer := self._consider(seq)) is not None]
        if not offers:
            return
        # Sequences of the step without draft tokens; prompts are left out of the account.
        others = sum(seq.num_new == 1 for seq in running) - len(offers)
        if not self._plain.knows(len(offers) + others):
            return
        length = self._best_length(offers, others)
        asked: list[_Offer] = []
        for offer in offers:
            if not min(offer.limit, length):
                offer.drafting.pause(offer.sequence.num_known)
                continue
            offer.drafting.method = offer.method
            if offer.method is DraftMethod.LOOKUP:
                offer.drafting.tokens = offer.found[: min(offer.limit, length)]
            else:
                asked.append(offer)
        if asked:
            assert self._drafter is not None, "it has made an offer"
            wanted = [(offer.sequence, min(offer.limit, length)) for offer in asked]
            started_ns = self._clock()
            for offer, tokens in zip(asked, self._drafter.draft(wanted), strict=True):
                offer.drafting.tokens = tokens
            self._began_ns += self._clock() - started_ns

    def needs_rest(self, running: list[Sequence]) -> bool:
        """Returns whether `draft` may ask the runner itself, which must have nothing in flight."""
        if self._drafter is None or self._drafter.method is not DraftMethod.PREDICTOR:
            return False
        return any(
            seq.drafting is not None
            and seq.drafting.limits[DraftMethod.PREDICTOR] > 0
            and seq.num_new == 1
            and seq.drafting.paused_until <= seq.num_known == seq.num_tokens
            for seq in running
        )

    def observe(self, chunks: list[Chunk], output: StepOutput, *, is_alone: bool) -> None:
        """Learns from the time of a step, if a sequence of it can have draft tokens.

        Args:
            chunks: of the step.
            output: which has come just now.
            is_alone: whether it began later than steps do that follow each other.
        """
        now_ns = self._clock()
        since_ns, self._began_ns = now_ns - self._began_ns, now_ns
        if not any(chunk.sequence.drafting for chunk in chunks):
            return
        if all(chunk.num_tokens == 1 + chunk.num_draft_tokens for chunk in chunks):
            checks = any(chunk.num_draft_tokens for chunk in chunks)
            follows = checks or not is_alone
            took_ns = max(output.device_ns, since_ns) if follows else output.device_ns
            times = self._checking if checks else self._plain
            times.take(sum([chunk.num_tokens for chunk in chunks]), took_ns)

    def release_ended(self) -> None:
        """Frees blocks of the draft model held for sequences that do not run any more."""
        if self._drafter is not None:
            self._drafter.release_ended()

    def check_integrity(self) -> None:
        """Asserts that every block of the draft model is accounted for."""
        if self._drafter is not None:
            self._drafter.check_integrity()

    def _consider(self, seq: Sequence) -> _Offer | None:
        """Returns what a sequence could have; makes it wait for its last token if need be."""
        drafting = seq.drafting
        if drafting is None:
            return None
        method = DraftMethod.MODEL if self._drafter is None else self._drafter.method
        num_model = drafting.limits[method] if self._drafter is not None else 0
        num_lookup = drafting.limits[DraftMethod.LOOKUP]
        is_paused = seq.num_known < drafting.paused_until
        seq.waits = seq.always_waits or not (is_paused or num_model == num_lookup == 0)
        if is_paused or seq.num_new != 1 or seq.num_known < seq.num_tokens:
            return None
        room = seq.compute_limit - seq.num_known
        rates = {method: each.rate for method, each in drafting.acceptance.items()}
        found = look_up(seq.known_tokens, min(num_lookup, room))
        if self._drafter is not None:
            num_model = min(num_model, room, self._drafter.room(seq))
        if len(found) and (num_model <= 0 or rates[DraftMethod.LOOKUP] >= rates[method]):
            limit = min(len(found), _worth_checking(rates[DraftMethod.LOOKUP]))
            return _Offer(seq, drafting, DraftMethod.LOOKUP, found, limit)
        if num_model > 0:
            limit = min(num_model, _worth_checking(rates[method]))
            return _Offer(seq, drafting, method, found, limit)
        return None

    def _best_length(self, offers: list[_Offer], others: int) -> int:
        """Returns the number of draft tokens, for those that can have so many, that pays best."""
        limits = np.array([offer.limit for offer in offers])
        rates = np.array([offer.drafting.acceptance[offer.method].rate for offer in offers])
        lengths = np.arange(limits.max(initial=0) + 1)
        counts = np.minimum(limits[:, None], lengths)  # [offers, lengths]
        chances = np.where(lengths <= limits[:, None], rates[:, None] ** lengths, 0.0)
        tokens = others + np.cumsum(chances.sum(axis=0))
        sizes = others + len(offers) + counts.sum(axis=0)
        plain_ns = self._plain.estimate(sizes[:1])[0]
        times = np.maximum(self._checking.estimate(sizes), plain_ns)
        times[0] = plain_ns
        by_model = np.array([offer.method is not DraftMethod.LOOKUP for offer in offers])
        if self._drafter is not None and by_model.any():
            step_ns = self._drafter.times.estimate(np.array([by_model.sum()]))[0]
            times = times + step_ns * counts[by_model].max(axis=0)
        gains = tokens / np.maximum(times, 1)
        if self._room is not None:
            gains = np.where(counts.sum(axis=0) <= self._room, gains, 0)
        best = int(gains.argmax())
        if best == 0 and len(lengths) > 1:
            self._checking.forget(int(sizes[1 + gains[1:].argmax()]))
        return best


def _worth_checking(rate: float) -> int:
    """Returns how many draft tokens in a row are accepted often enough."""
    if rate >= 1:
        return 1 << 16
    return int(log(_WORTH_CHECKING) / log(rate)) if rate > 0 else 0
