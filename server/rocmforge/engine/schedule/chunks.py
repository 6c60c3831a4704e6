"""The parts of a step."""

from __future__ import annotations

from typing import NamedTuple

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import NO_SLOT
from rocmforge.engine.constraint.constraint import Constraint
from rocmforge.engine.ipc.recorded import TOP
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
    state_read: int = NO_SLOT  # slots of the states before its first token, and after its last
    state_write: int = NO_SLOT
    states_between: tuple[int, ...] = ()  # slots of those after each token before that, if any
    is_recorded: bool = False  # whether what is most probable in its drawing rows is recorded

    @property
    def tokens(self) -> Int32Array:
        """The token ids, [num_tokens]; the last is undefined if it has a source row."""
        return self.sequence.tokens[self.start : self.start + self.num_tokens]

    @property
    def is_decode(self) -> bool:
        """Whether it computes one token only, and draft tokens behind it."""
        return self.num_tokens == 1 + self.num_draft_tokens

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
    def num_logprobs(self) -> int:
        """How many of the most probable tokens its drawing rows report; -1 = none."""
        asked = self.sequence.sampling.num_logprobs
        return max(asked, TOP) if self.is_recorded else asked

    @property
    def draw_rows(self) -> range:
        """The logit rows that draw tokens, in order of position."""
        return range(self.first_row + self.num_scores, self.first_row + self.num_rows)
