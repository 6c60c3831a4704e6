"""Takes in the results of steps: the tokens, scores and hidden states of each chunk."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rocmforge.backend.step import StepOutput
from rocmforge.engine.cache.block_manager import BlockManager
from rocmforge.engine.ipc.params import FinishReason, TokenEvent
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.fairness import FairQueue
from rocmforge.engine.schedule.logprobs import read_logprobs, record_rows
from rocmforge.engine.sequence.drafting import DraftMethod
from rocmforge.engine.sequence.pooling import Pool
from rocmforge.engine.sequence.sequence import Sequence, Status


class _Finish(Protocol):
    """The end of a sequence, with `news` in its last event."""

    def __call__(
        self, seq: Sequence, reason: FinishReason, now_ns: int, news: TokenEvent | None = None
    ) -> TokenEvent: ...


class Results:
    """The taker of what steps have computed, for the sequences of each.

    Args:
        totals: counters to continue.
        cache: forgets what a NaN came from.
        queue: charges keys for their tokens.
        finish: ends a sequence.
    """

    def __init__(
        self, totals: Totals, cache: BlockManager, queue: FairQueue, finish: _Finish
    ) -> None:
        self._totals = totals
        self._cache = cache
        self._queue = queue
        self._finish = finish

    def take(self, chunks: list[Chunk], output: StepOutput, now_ns: int) -> list[TokenEvent]:
        """Takes in the results of a step.

        Rows of sequences that ended in the meantime are dropped.
        """
        ids: list[int] = output.token_ids.tolist()
        events = []
        for chunk in chunks:
            num_known = chunk.num_tokens - chunk.num_draft_tokens
            if chunk.start < chunk.sequence.num_prompt or num_known > 1:
                self._totals.prefill_tokens += num_known
            if chunk.sequence.status is Status.FINISHED:
                continue
            if chunk.sequence.pool is not None:
                events += self._commit_hidden(chunk, chunk.sequence.pool, output, now_ns)
            elif chunk.num_rows:
                events.append(self._commit_rows(chunk, ids, output, now_ns))
        self._totals.steps += 1
        self._totals.device_ns += output.device_ns
        self._totals.host_processed_rows += output.host_processed_rows
        return events

    def _commit_rows(
        self, chunk: Chunk, ids: list[int], output: StepOutput, now_ns: int
    ) -> TokenEvent:
        seq, sampling = chunk.sequence, chunk.sequence.sampling
        first, first_draw = chunk.first_row, chunk.first_row + chunk.num_scores
        token_ids = self._accepted_draws(chunk, ids)
        if -1 in ids[first:first_draw] or -1 in token_ids:
            return self._fail_without_token(seq, now_ns)
        logprobs = prompt_logprobs = reason = None
        recorded = b""
        is_first = chunk.samples and not seq.first_token_ns
        if chunk.num_scores:
            scored = read_logprobs(output, first, first_draw, sampling.prompt_logprobs)
            prompt_logprobs = seq.without_placeholders(scored, chunk.score_start + 1)
        if chunk.samples:
            for number, token in enumerate(token_ids, start=1):
                if seq.matcher is not None and not seq.matcher.advance(token):
                    problem = f"The output left its grammar: {seq.matcher.error}"
                    return self._fail(seq, problem, now_ns)
                reason = self._take_token(seq, token, now_ns)
                if reason is not None:  # draft tokens end no sequence
                    assert number == len(token_ids), "nothing follows the last token"
            end = first_draw + len(token_ids)
            if chunk.is_recorded:
                recorded = record_rows(output, first_draw, end)
            if sampling.num_logprobs >= 0:
                logprobs = read_logprobs(output, first_draw, end, sampling.num_logprobs)
            if chunk.num_draft_tokens:
                self._count_accepted(seq, chunk.num_draft_tokens, len(token_ids) - 1)
        elif chunk.start + chunk.num_tokens == seq.compute_limit:
            reason = FinishReason.LENGTH  # only scored: max_tokens is 0
        event = TokenEvent(
            request_id=seq.request.request_id,
            token_ids=tuple(token_ids),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            cached_tokens=seq.cached_tokens if is_first else 0,
            timing=seq.timing(now_ns) if is_first else None,
            recorded=recorded,
        )
        return event if reason is None else self._finish(seq, reason, now_ns, event)

    def _count_accepted(self, seq: Sequence, drafted: int, accepted: int) -> None:
        assert seq.drafting is not None, "there were draft tokens"
        seq.drop_rejected()
        self._cache.settle(seq, accepted)
        seq.drafting.count(drafted, accepted)
        match seq.drafting.method:
            case DraftMethod.LOOKUP:
                self._totals.count_lookup(drafted, accepted)
            case DraftMethod.MODEL:
                self._totals.count_model(drafted, accepted)
            case DraftMethod.PREDICTOR:
                self._totals.count_predictor(drafted, accepted)

    @staticmethod
    def _accepted_draws(chunk: Chunk, ids: list[int]) -> list[int]:
        """Returns what the rows have drawn, up to the first that differs from its draft token.

        Draws depend on seed, position and what stands before: behind accepted tokens, they are the
        tokens that would have been drawn one at a time.
        """
        draws = ids[chunk.draw_rows.start : chunk.draw_rows.stop]
        for i, (draft, draw) in enumerate(zip(chunk.draft_tokens.tolist(), draws, strict=False)):
            if draw != draft:
                return draws[: i + 1]
        return draws

    def _commit_hidden(
        self, chunk: Chunk, pool: Pool, output: StepOutput, now_ns: int
    ) -> list[TokenEvent]:
        """Takes hidden states in; returns the last event when there are no more to come."""
        seq = chunk.sequence
        if chunk.num_hidden:
            assert output.hidden is not None, "the step asked for hidden states"
            pool.take(output.hidden[chunk.hidden_sum])
        if chunk.start + chunk.num_tokens < seq.compute_limit:
            return []
        if not np.isfinite(pool.result).all():
            return [self._fail_without_token(seq, now_ns)]
        event = TokenEvent(
            request_id=seq.request.request_id, embedding=pool.result.astype(np.float32).tobytes()
        )
        return [self._finish(seq, FinishReason.LENGTH, now_ns, event)]

    def _take_token(self, seq: Sequence, token: int, now_ns: int) -> FinishReason | None:
        seq.append(token)
        seq.first_token_ns = seq.first_token_ns or now_ns
        self._totals.decode_tokens += 1
        self._queue.charge_output(seq)
        if token in seq.stop_ids:
            return FinishReason.STOP
        if seq.num_known == seq.max_length:
            return FinishReason.LENGTH
        return None

    def _fail_without_token(self, seq: Sequence, now_ns: int) -> TokenEvent:
        self._cache.forget(seq)
        message = (
            "No token can be drawn for this request: the model produced NaN, or what it asks for "
            "left no token allowed."
        )
        if seq.matcher is not None and seq.matcher.error:
            message = f"The output cannot be constrained: {seq.matcher.error}"
        return self._fail(seq, message, now_ns, is_without_token=True)

    def _fail(
        self, seq: Sequence, message: str, now_ns: int, *, is_without_token: bool = False
    ) -> TokenEvent:
        event = TokenEvent(
            request_id=seq.request.request_id, error=message, is_without_token=is_without_token
        )
        return self._finish(seq, FinishReason.ERROR, now_ns, event)
