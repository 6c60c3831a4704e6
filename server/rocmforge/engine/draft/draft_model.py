"""Draft tokens by a second, smaller model with the same vocabulary (Leviathan et al., 2023)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as count_up

from rocmforge.backend.protocol import Runner
from rocmforge.engine.cache.block_manager import BlockManager
from rocmforge.engine.draft.drafter import Drafter, Shadow
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.sequence.drafting import DraftMethod
from rocmforge.engine.sequence.sequence import Sequence


class DraftModel(Drafter):
    """The draft model, its cache, and its shadows of the sequences.

    Sequences are followed lazily: their tokens are computed when draft tokens are first wanted, a
    chunk in each round, so that no first token waits for it. A sequence that finds no room in the
    cache gets no draft tokens.

    Args:
        runner: the loaded model.
        limits: of a step, as for the model that checks the draft tokens.
        vocab_size: tokens of that model; draft tokens are below this.
        clock: monotonic nanoseconds.
        totals: counters to continue.
    """

    method = DraftMethod.MODEL

    def __init__(
        self,
        runner: Runner,
        limits: SchedulerLimits,
        vocab_size: int,
        clock: Callable[[], int],
        totals: Totals,
    ) -> None:
        super().__init__(runner, limits, vocab_size, clock, totals, count_up().__next__)
        info = runner.info
        self._max_context = min(info.max_context, info.num_blocks * info.block_size)
        self._cache = BlockManager(
            info.num_blocks, info.block_size, keeps_prefixes=limits.prefix_cache
        )

    def room(self, seq: Sequence) -> int:
        """Returns how many tokens it could draft: the last draft token is never computed."""
        return self._max_context - seq.num_known + 1

    def check_integrity(self) -> None:
        """Asserts that every block is accounted for, and none held for sequences that are gone."""
        super().check_integrity()
        self._cache.check_integrity(shadow.copy for shadow in self._shadows.values())

    def _drop(self, shadow: Shadow) -> None:
        shadow.sync()
        self._cache.release(shadow.copy)

    def _follow(self, seq: Sequence, count: int) -> Shadow | None:
        """Returns the shadow of a sequence, with room for `count` draft tokens; None without."""
        shadow = self._shadow_of(seq)
        if seq.tokens[shadow.num_synced : seq.num_known].max(initial=0) >= self._vocab_size:
            return None  # and none from now on: it is not synced
        shadow.sync()
        copy, end = shadow.copy, seq.num_known + count - 1
        copy.seen = None if seq.seen is None else seq.seen.copy(count)
        if copy.num_blocks:
            self._cache.publish(copy)
            has_room = self._cache.extend(copy, end)
        else:
            has_room = self._cache.place(copy, end, reusable=copy.num_known - 1)
        return shadow if has_room else None
