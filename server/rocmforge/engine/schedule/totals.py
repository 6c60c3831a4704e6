"""Counters that only grow, over all lives of the engine process."""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge.backend.protocol import StepCost
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.engine.sequence.drafting import DraftMethod


@dataclass(slots=True)
class Totals:
    """The scheduler's counters; `EngineStats` says what each of them means."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    device_ns: int = 0
    read_bytes: int = 0
    launches: int = 0
    gap_ns: int = 0
    host_processed_rows: int = 0
    last_step_tokens: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    model_drafts: int = 0
    model_drafted_tokens: int = 0
    model_accepted_tokens: int = 0
    model_draft_ns: int = 0

    def count_drafts(self, method: DraftMethod, drafted: int, accepted: int) -> None:
        """Counts draft tokens of one sequence in one step, and how many of them were accepted."""
        if method is DraftMethod.LOOKUP:
            self.drafts += 1
            self.drafted_tokens += drafted
            self.accepted_tokens += accepted
        else:
            self.model_drafts += 1
            self.model_drafted_tokens += drafted
            self.model_accepted_tokens += accepted

    def count_cost(self, cost: StepCost, *, after_rest: bool) -> None:
        """Counts what a step cost; a gap in which nobody wanted anything is no loss."""
        self.read_bytes += cost.bytes_read
        self.launches += cost.launches
        self.gap_ns += 0 if after_rest else cost.gap_ns

    @classmethod
    def resume(cls, stats: EngineStats) -> Totals:
        """Goes on where an earlier engine process stopped."""
        return cls(
            steps=stats.steps_total,
            prefill_tokens=stats.prefill_tokens_total,
            decode_tokens=stats.decode_tokens_total,
            preemptions=stats.preemptions_total,
            prefix_query_tokens=stats.prefix_query_tokens_total,
            prefix_hit_tokens=stats.prefix_hit_tokens_total,
            device_ns=stats.device_ns_total,
            read_bytes=stats.read_bytes_total,
            launches=stats.launches_total,
            gap_ns=stats.gap_ns_total,
            drafts=stats.drafts_total,
            drafted_tokens=stats.drafted_tokens_total,
            accepted_tokens=stats.accepted_tokens_total,
            model_drafts=stats.model_drafts_total,
            model_drafted_tokens=stats.model_drafted_tokens_total,
            model_accepted_tokens=stats.model_accepted_tokens_total,
            model_draft_ns=stats.model_draft_ns_total,
            host_processed_rows=stats.host_processed_rows_total,
        )
