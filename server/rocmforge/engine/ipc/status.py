"""State and counters of an engine, for /ready, /health and /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.engine.ipc.message import Message
from rocmforge.engine.ipc.totals import Totals


class EngineState(StrEnum):
    """The stage of an engine process."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # it died; a new one is being started, with backoff
    DRAINING = "draining"  # finishes what it has, takes nothing new
    STOPPED = "stopped"


class EngineStats(Message, frozen=True):
    """Gauges of the engine process, and its counters."""

    running: int = 0
    waiting: int = 0
    waiting_by_key: tuple[tuple[int, int], ...] = ()  # (`Share.key`, sequences), if any wait
    blocks_total: int = 0
    blocks_used: int = 0  # referenced by live sequences
    blocks_cached: int = 0  # free, but still holding a reusable prefix
    slots_total: int = 0  # for states; 0: the model has none
    slots_used: int = 0  # by live sequences
    snapshots: int = 0  # of states, that sequences to come can go on from
    totals: Totals = msgspec.field(default_factory=Totals)

    def at_rest(self) -> EngineStats:
        """Returns the counters alone, as they are once the process has ended."""
        return EngineStats(totals=self.totals)


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
