"""Draft tokens by the predictor of a model (DeepSeek-AI 2024; Gloeckle et al. 2024).

The model fills the predictor's cache and keeps its own hidden states in each step; both lie in the
blocks of the sequences. So they are there after a prefix hit, and go with the blocks when a
sequence is preempted. What a draft token leaves behind is overwritten when it is checked.
"""

from __future__ import annotations

from collections.abc import Callable

from rocmforge.backend.protocol import Runner
from rocmforge.engine.draft.drafter import Drafter, Shadow
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.sequence.drafting import DraftMethod
from rocmforge.engine.sequence.sequence import Sequence


class PredictorDrafts(Drafter):
    """Asks the model's own runner to guess, between two steps.

    Args:
        runner: the loaded model, of which no step may be in flight.
        limits: of a step.
        clock: monotonic nanoseconds.
        totals: counters to continue.
        new_step_id: counts the runner's steps.
        extend: gives a sequence room for so many tokens; False if there is none.
    """

    method = DraftMethod.PREDICTOR

    def __init__(
        self,
        runner: Runner,
        limits: SchedulerLimits,
        clock: Callable[[], int],
        totals: Totals,
        new_step_id: Callable[[], int],
        extend: Callable[[Sequence, int], bool],
    ) -> None:
        super().__init__(runner, limits, runner.info.vocab_size, clock, totals, new_step_id)
        self._extend = extend

    def room(self, seq: Sequence) -> int:
        """Returns how many tokens it could draft."""
        return seq.compute_limit - seq.num_known

    def _drop(self, shadow: Shadow) -> None:
        """Nothing is held but the blocks of the sequence."""

    def _follow(self, seq: Sequence, count: int) -> Shadow | None:
        shadow = self._shadow_of(seq)
        if not self._extend(seq, seq.num_known + count - 1):
            return None
        shadow.sync()
        copy = shadow.copy
        copy.num_computed = seq.num_known - 1
        copy.block_ids, copy.num_blocks = seq.block_ids, seq.num_blocks
        copy.seen = None if seq.seen is None else seq.seen.copy(count)
        return shadow
