"""Draft tokens that are drawn in steps, one after the other.

They are drawn with the seeds, positions and settings of the sequences that they are for. Noise
depends on nothing else, so where a drafter and the model agree, they draw the same token at any
temperature. A wrong draft token is found out when the model draws for itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rocmforge.backend.arrays import Int32Array, UInt32Array
from rocmforge.backend.protocol import Runner
from rocmforge.backend.step import StepOutput
from rocmforge.engine.draft.step_times import StepTimes
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.batch import build_step
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.schedule.step_builder import StepBuilder
from rocmforge.engine.sequence.drafting import DraftMethod
from rocmforge.engine.sequence.sequence import Sequence, Status


@dataclass(slots=True, eq=False)
class Shadow:
    """A sequence as a drafter has it.

    The copy has its tokens, and counts what the drafter has computed of them. Behind the
    `num_synced` tokens stand draft tokens. They are compared with the sequence's own when the next
    ones are wanted.
    """

    sequence: Sequence
    copy: Sequence
    num_synced: int = 0
    is_drafting: bool = False  # in the current round

    @property
    def draft_tokens(self) -> Int32Array:
        return self.copy.tokens[self.num_synced : self.copy.num_known]

    def sync(self) -> None:
        """Takes over the sequence's tokens; what was computed for rejected ones is void."""
        copy, known = self.copy, self.sequence.num_known
        tokens = self.sequence.tokens[self.num_synced : known]
        rejected = np.flatnonzero(copy.tokens[self.num_synced : known] != tokens)
        accepted = self.num_synced + int(rejected[0]) if len(rejected) else known
        copy.tokens[self.num_synced : known] = tokens
        copy.num_computed = min(copy.num_computed, accepted, known - 1)
        copy.num_known = copy.num_tokens = self.num_synced = known


class Drafter(ABC):
    """A draft model or a predictor: the steps of a round, and shadows of the sequences.

    Args:
        runner: computes the steps.
        limits: of a step, as for the model that checks the draft tokens.
        vocab_size: tokens of that model; draft tokens are below this.
        clock: monotonic nanoseconds.
        totals: counters to continue.
        new_step_id: counts the runner's steps.
    """

    method: DraftMethod

    def __init__(
        self,
        runner: Runner,
        limits: SchedulerLimits,
        vocab_size: int,
        clock: Callable[[], int],
        totals: Totals,
        new_step_id: Callable[[], int],
    ) -> None:
        self._runner = runner
        self._limits = limits
        self._clock = clock
        self._totals = totals
        self._vocab_size = min(vocab_size, runner.info.vocab_size)
        self._block_size = runner.info.block_size
        self._new_step_id = new_step_id
        self._shadows: dict[int, Shadow] = {}  # by request
        self.times = StepTimes()
        """Times of its steps, by the number of sequences that it drafts for."""

    @abstractmethod
    def room(self, seq: Sequence) -> int:
        """Returns how many tokens it could draft."""

    @abstractmethod
    def _follow(self, seq: Sequence, count: int) -> Shadow | None:
        """Returns the shadow of a sequence, with room for `count` draft tokens; None without."""

    @abstractmethod
    def _drop(self, shadow: Shadow) -> None:
        """Gives back what is held for a sequence that does not run any more."""

    def check_integrity(self) -> None:
        """Asserts that nothing is held for sequences that are gone."""
        assert all(s.sequence.status is Status.RUNNING for s in self._shadows.values())

    def release_ended(self) -> None:
        """Gives back what is held for sequences that do not run any more."""
        for request_id, shadow in list(self._shadows.items()):
            if shadow.sequence.status is not Status.RUNNING:
                self._drop(shadow)
                del self._shadows[request_id]

    def _shadow_of(self, seq: Sequence) -> Shadow:
        request_id = seq.request.request_id
        if request_id not in self._shadows:
            self._shadows[request_id] = Shadow(seq, copy_of(seq, self._block_size))
        return self._shadows[request_id]

    def draft(self, wanted: list[tuple[Sequence, int]]) -> list[Int32Array]:
        """Drafts the next tokens.

        Args:
            wanted: sequences whose tokens are all known, and how many draft tokens each gets at
                most; there is `room` for them.

        Returns:
            The draft tokens of each sequence, [K], K at most as wanted.

        Raises:
            EngineError: the device failed.
        """
        started = self._clock()
        nothing = np.zeros(0, np.int32)
        shadows = [self._follow(seq, count) for seq, count in wanted]
        counts = {
            shadow: count
            for shadow, (_, count) in zip(shadows, wanted, strict=True)
            if shadow is not None
        }
        num_steps = self._run(counts) if counts else 0
        took_ns = self._clock() - started
        self._totals.model_draft_ns += took_ns
        if num_steps and all(len(shadow.draft_tokens) for shadow in counts):
            self.times.take(len(counts), took_ns / num_steps)
        return [nothing if shadow is None else shadow.draft_tokens.copy() for shadow in shadows]

    def _run(self, counts: dict[Shadow, int]) -> int:
        """Runs steps until all have their draft tokens; returns the number of steps.

        The first step takes in what is new. The rest of its token budget goes to sequences that
        are far behind; those get no draft tokens in this round. With a runner of depth 2, no step
        waits for the host to know the tokens of the one before, except under grammars.
        """
        shadow_of = {shadow.copy: shadow for shadow in counts}
        builder = StepBuilder(self._limits)
        for copy in sorted(shadow_of, key=lambda copy: copy.num_new):
            room = builder.room_for(copy)
            if room > 0:
                builder.add(copy, room)
        chunks = builder.chunks
        for shadow in counts:
            shadow.is_drafting = False
        for chunk in chunks:
            shadow_of[chunk.sequence].is_drafting = chunk.samples
        is_masked = any(shadow.sequence.matcher is not None for shadow in counts)
        depth = 1 if is_masked else self._runner.info.pipeline_depth
        in_flight: deque[list[Chunk]] = deque()
        num_steps = 0
        while chunks:
            step = build_step(self._new_step_id(), chunks, self._block_size)
            step = replace(step, predicts=self.method is DraftMethod.PREDICTOR)
            if is_masked and self._runner.info.masks_tokens:
                allowed = self._allowed(chunks, shadow_of)
                step = replace(step, sampling=replace(step.sampling, allowed=allowed))
            self._runner.submit(step)
            num_steps += 1
            in_flight.append(chunks)
            if len(in_flight) == depth:
                self._take(in_flight.popleft(), self._runner.collect(), shadow_of)
            builder = StepBuilder(self._limits)
            for shadow, count in counts.items():
                if shadow.is_drafting and num_steps < count:
                    builder.add(shadow.copy, 1)
            chunks = builder.chunks
        while in_flight:
            self._take(in_flight.popleft(), self._runner.collect(), shadow_of)
        for copy in shadow_of:  # a step may have been underway when the draft tokens ended
            copy.num_computed = min(copy.num_computed, copy.num_known)
        return num_steps

    def _allowed(self, chunks: list[Chunk], shadow_of: dict[Sequence, Shadow]) -> UInt32Array:
        """Returns which tokens each row may draw, as bits, uint32 [L, ceil(V / 32)]."""
        num_words = -(-self._runner.info.vocab_size // 32)
        num_rows = sum(chunk.num_rows for chunk in chunks)
        allowed = np.full((num_rows, num_words), 0xFFFFFFFF, np.uint32)
        for chunk in chunks:
            shadow = shadow_of[chunk.sequence]
            matcher = shadow.sequence.matcher
            if matcher is not None and chunk.samples:
                ahead = np.zeros((len(shadow.draft_tokens) + 1, matcher.num_words), np.uint32)
                matcher.fill_ahead(ahead, shadow.draft_tokens)
                width = min(num_words, matcher.num_words)
                allowed[chunk.first_row, :width] = ahead[-1, :width]
        return allowed

    def _take(
        self, chunks: list[Chunk], output: StepOutput, shadow_of: dict[Sequence, Shadow]
    ) -> None:
        """Appends the drawn tokens, up to the first that cannot be a draft token."""
        ids: list[int] = output.token_ids.tolist()
        for chunk in chunks:
            copy = chunk.sequence
            shadow = shadow_of[copy]
            if not chunk.samples or not shadow.is_drafting:
                continue
            token = ids[chunk.first_row]
            if not 0 <= token < self._vocab_size or token in copy.stop_ids:
                shadow.is_drafting = False
                continue
            copy.append(token)
            matcher = shadow.sequence.matcher
            if matcher is not None and matcher.count_allowed(shadow.draft_tokens) < len(
                shadow.draft_tokens
            ):
                shadow.is_drafting = False


def copy_of(seq: Sequence, block_size: int) -> Sequence:
    """Copies what a sequence draws with; everything else that it may be asked for is left out."""
    sampling = seq.sampling
    request = GenerateRequest(
        request_id=seq.request.request_id,
        prompt=seq.request.prompt,
        sampling=SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            seed=sampling.seed,
            min_tokens=sampling.min_tokens,
            ignore_eos=sampling.ignore_eos,
            stop_token_ids=sampling.stop_token_ids,
            logit_bias=sampling.logit_bias,
            cache_salt=sampling.cache_salt,
        ),
        eos_ids=seq.request.eos_ids,
        arrival_ns=seq.request.arrival_ns,
        share=seq.request.share,
    )
    return Sequence(request, block_size)
