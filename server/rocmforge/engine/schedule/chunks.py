"""The chunks of one step, and what room is left for more."""

from __future__ import annotations

from typing import NamedTuple

from rocmforge.backend.protocol import NO_SOURCE, Int32Array
from rocmforge.engine.constraint.constraint import Constraint
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.sequence.sequence import Sequence


class Chunk(NamedTuple):
    """Consecutive tokens of one sequence to compute in a step.

    Its logit rows are `first_row` and following: first those that score prompt tokens, in
    order, then the one that draws the next token. Draft tokens are the last of its tokens; each has
    one more of those rows, which draws what follows if the draft token is accepted.
    """

    sequence: Sequence
    start: int  # position of the first token
    num_tokens: int
    source_row: int  # of the previous step, for the last token; or NO_SOURCE
    first_row: int
    score_start: int  # position of the first token whose successor is scored
    num_scores: int
    samples: bool  # whether the last token's row draws the next token
    hidden_sum: int = 0  # row of the sum of its hidden states, if any are wanted
    hidden_start: int = 0  # position of the first token whose hidden state is wanted
    num_hidden: int = 0
    num_draft_tokens: int = 0

    @property
    def tokens(self) -> Int32Array:
        """The token ids, [num_tokens]; the last is undefined if it has a source row."""
        return self.sequence.tokens[self.start : self.start + self.num_tokens]

    @property
    def matcher(self) -> Constraint | None:
        """The constraint on the token it draws."""
        return self.sequence.matcher if self.samples else None

    @property
    def draft_tokens(self) -> Int32Array:
        """The draft tokens, [num_draft_tokens]."""
        return self.tokens[self.num_tokens - self.num_draft_tokens :]

    @property
    def num_rows(self) -> int:
        """The number of logit rows of this chunk."""
        return self.num_scores + (1 + self.num_draft_tokens if self.samples else 0)

    @property
    def draw_rows(self) -> range:
        """The logit rows that draw tokens, in order of position."""
        return range(self.first_row + self.num_scores, self.first_row + self.num_rows)


class StepBuilder:
    """Chunks chosen so far for one step, and the room that is left.

    Args:
        limits: see `SchedulerLimits`.
        whole_prompts: whether no prompt may be cut: tokens attend to those behind them, too.
    """

    def __init__(self, limits: SchedulerLimits, *, whole_prompts: bool = False) -> None:
        self._whole_prompts = whole_prompts
        self.chunks: list[Chunk] = []
        self._tokens_left = limits.max_batched_tokens
        self._score_rows_left = limits.max_score_rows
        self._num_rows = 0
        self._num_hidden_sums = 0

    def room_for(self, seq: Sequence) -> int:
        """Returns how many tokens of the sequence may be computed in this step."""
        count = min(seq.num_new, self._tokens_left)
        if self._whole_prompts and count < seq.num_new:
            return 0
        if seq.scores_prompt:
            unscored = max(seq.num_computed, seq.num_scored)
            if unscored + self._score_rows_left < seq.num_prompt - 1:
                count = min(count, unscored + self._score_rows_left - seq.num_computed)
        return count

    def room_for_draft_tokens(self, reserved: int) -> int:
        """Returns the room for draft tokens if `reserved` other sequences get a token each."""
        return max(0, min(self._tokens_left - 1 - reserved, self._score_rows_left))

    def add(self, seq: Sequence, count: int, num_draft_tokens: int = 0) -> None:
        """Puts the next `count` tokens of a sequence and draft tokens behind them into the step."""
        start = seq.num_computed
        end = start + count
        score_start, num_scores = end, 0
        if seq.scores_prompt:
            score_start = max(start, seq.num_scored)
            num_scores = max(0, min(end, seq.num_prompt - 1) - score_start)
            seq.num_scored += num_scores
        samples = end == seq.num_tokens and seq.pool is None
        hidden_start, num_hidden = (end, 0) if seq.pool is None else seq.pool.claim(start, end)
        on_device = samples and seq.num_known < seq.num_tokens
        chunk = Chunk(
            sequence=seq,
            start=start,
            num_tokens=count + num_draft_tokens,
            source_row=seq.source_row if on_device else NO_SOURCE,
            first_row=self._num_rows,
            score_start=score_start,
            num_scores=num_scores,
            samples=samples,
            hidden_sum=self._num_hidden_sums,
            hidden_start=hidden_start,
            num_hidden=num_hidden,
            num_draft_tokens=num_draft_tokens,
        )
        self.chunks.append(chunk)
        self._tokens_left -= chunk.num_tokens
        self._score_rows_left -= num_scores + num_draft_tokens
        self._num_rows += chunk.num_rows
        self._num_hidden_sums += num_hidden > 0
        seq.num_computed = end + num_draft_tokens
        if samples:
            seq.num_tokens += 1
            seq.source_row = self._num_rows - 1
