"""State and counters of an engine, for /ready, /health and /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.engine.ipc.params import Message


class EngineState(StrEnum):
    """The stage of an engine process."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # it died; a new one is being started, with backoff
    DRAINING = "draining"  # finishes what it has, takes nothing new
    STOPPED = "stopped"


class EngineStats(Message, frozen=True):
    """Counters and gauges of the engine process; `_total` ones only grow."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_used: int = 0  # referenced by live sequences
    blocks_cached: int = 0  # free, but still holding a reusable prefix
    steps_total: int = 0
    prefill_tokens_total: int = 0  # computed, without what the prefix cache gave
    decode_tokens_total: int = 0
    preemptions_total: int = 0
    prefix_query_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    device_ns_total: int = 0
    read_bytes_total: int = 0  # see `StepCost`; 0 if the backend does not tell
    launches_total: int = 0
    gap_ns_total: int = 0  # between steps, while there was something to do
    host_processed_rows_total: int = 0  # see `StepOutput.host_processed_rows`
    last_step_tokens: int = 0
    drafts_total: int = 0  # times that draft tokens by prompt lookup were checked
    drafted_tokens_total: int = 0  # draft tokens of those
    accepted_tokens_total: int = 0  # of those, accepted ones
    model_drafts_total: int = 0  # the same for draft tokens by the draft model
    model_drafted_tokens_total: int = 0
    model_accepted_tokens_total: int = 0
    model_draft_ns_total: int = 0  # time that the draft model took
    waiting_by_key: tuple[tuple[int, int], ...] = ()  # (`Share.key`, sequences), if any wait


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """A snapshot for whoever asks."""

    state: EngineState
    stage: str  # what loading is doing now, "" otherwise
    progress: float  # of that stage, 0..1
    runner: RunnerInfo | None  # once loaded
    is_fallback: bool  # the reference backend, because nothing else has a device
    fallback_reason: str  # why, "" otherwise
    stats: EngineStats
    restarts: int
    last_error: str | None  # why the engine last died
    last_error_at: float | None = None  # seconds since the epoch
    silence_s: float = 0.0  # since there was news of loading, or of the requests there are
    is_wedged: bool = False  # the process was killed and does not end: its device or driver hangs
