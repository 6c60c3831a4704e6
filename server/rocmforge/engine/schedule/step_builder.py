"""The chunks chosen for one step, and what room is left for more."""

from __future__ import annotations

from typing import Final

from rocmforge.backend.step import NO_SLOT, NO_SOURCE
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.schedule.time_budget import LEAST_TOKENS, TimeBudget
from rocmforge.engine.sequence.embeddings import Embeddings
from rocmforge.engine.sequence.sequence import Sequence

TILE_TOKENS: Final = 64
"""Matrix products compute multiples of so many tokens, and take as long for one more as for all.

By simulation, first tokens come up to 12% earlier for whole tiles on a saturated device of which
that is true, and 1% later on any other.
"""


class StepBuilder:
    """Chunks chosen so far for one step, and the room that is left.

    Args:
        limits: see `SchedulerLimits`.
        whole_prompts: whether no prompt may be cut: tokens attend to those behind them, too.
        recorded: requests whose most probable tokens are recorded.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        whole_prompts: bool = False,
        recorded: frozenset[int] = frozenset(),
    ) -> None:
        self._whole_prompts = whole_prompts
        self._recorded = recorded
        self._whole_rows = limits.whole_rows
        self.chunks: list[Chunk] = []
        self.sequences: set[Sequence] = set()  # of these chunks
        self._most_chunks = limits.max_sequences
        self._tokens_left = limits.max_batched_tokens
        self._score_rows_left = limits.max_score_rows
        self._num_rows = 0
        self._num_hidden_sums = 0
        self._time: TimeBudget | None = None
        self._tokens_reserved = 0
        self._least_tokens = 0

    def limit_time(self, budget: TimeBudget) -> None:
        """Limits the time that prompts may take from now on."""
        self._time = budget
        self._least_tokens = LEAST_TOKENS

    def reserve_half(self, first: Sequence) -> None:
        """Keeps half of the room for `give_back`, and what the first in order gets anyway."""
        half = (self._tokens_left + 1) // 2
        self._tokens_reserved = min(max(half, self._whole_rows), self._tokens_left)
        self._tokens_left -= self._tokens_reserved
        self._least_tokens = 0
        if self._time is not None:
            self._time.reserve_half(first.num_computed, first.num_new)

    def give_back(self) -> None:
        """Adds what was kept."""
        self._tokens_left += self._tokens_reserved
        self._tokens_reserved = 0
        if self._time is not None:
            self._time.give_back()
            self._least_tokens = LEAST_TOKENS

    def has_room_for_part(self, running: int) -> bool:
        """Returns whether the step may have one more chunk, and one of each running sequence."""
        parts = len(self.chunks) - len(self.sequences)  # behind the first ones
        return running + parts < self._most_chunks

    def room_for(self, seq: Sequence) -> int:
        """Returns how many tokens of the sequence may be computed in this step."""
        most = count = min(seq.num_new, self._tokens_left)
        if self._whole_prompts and count < seq.num_new:
            return 0
        if self._time is not None:
            fits = max(self._time.room(seq.num_computed), self._least_tokens)
            if fits < count:
                count = self._to_tile(fits)
        if seq.scores_prompt:
            unscored = max(seq.num_computed, seq.num_scored)
            if unscored + self._score_rows_left < seq.num_prompt - 1:
                most = min(most, unscored + self._score_rows_left - seq.num_computed)
                count = min(count, most)
        if seq.embeddings is not None:
            return self._with_whole_images(seq.num_computed, seq.embeddings, count, most)
        return count

    def _with_whole_images(self, start: int, embeddings: Embeddings, count: int, most: int) -> int:
        """Returns how many of `count` tokens to compute, so that no image is cut.

        The first prompt in order gets the whole of one however long that takes, if `most` tokens
        have room for it: so it always gets on.
        """
        whole = embeddings.whole_end(start, start + count) - start
        if whole > 0:
            return whole
        needed = embeddings.needed_end(start) - start
        return needed if self._least_tokens and needed <= most else 0

    def _to_tile(self, count: int) -> int:
        """Returns how many of `count` tokens fill whole tiles of the step, if only few are lost."""
        used = sum([chunk.num_tokens for chunk in self.chunks])
        whole = (used + count) // TILE_TOKENS * TILE_TOKENS - used
        return whole if count - whole <= count // 8 else count

    def room_for_draft_tokens(self, reserved: int) -> int:
        """Returns the room for draft tokens if `reserved` other sequences get a token each."""
        # An image of a prompt that waits for room gets it before they do.
        left = self._tokens_left - 1 - reserved - self._whole_rows
        return max(0, min(left, self._score_rows_left))

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
            is_recorded=samples and seq.request.request_id in self._recorded,
            hidden_sum=self._num_hidden_sums,
            hidden_start=hidden_start,
            num_hidden=num_hidden,
            num_draft_tokens=num_draft_tokens,
            state_read=NO_SLOT if seq.states is None else seq.states.read,
            state_write=NO_SLOT if seq.states is None else seq.states.write,
            states_between=() if seq.states is None else seq.states.between,
        )
        self.chunks.append(chunk)
        self.sequences.add(seq)
        if self._time is not None:
            self._time.take(start, chunk.num_tokens, chunk.num_rows)
            self._least_tokens = 0
        self._tokens_left -= chunk.num_tokens
        self._score_rows_left -= num_scores + num_draft_tokens
        self._num_rows += chunk.num_rows
        self._num_hidden_sums += num_hidden > 0
        seq.num_computed = end + num_draft_tokens
        if samples:
            seq.num_tokens += 1
            seq.source_row = self._num_rows - 1
