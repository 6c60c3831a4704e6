"""State and counters of an engine, for /ready, /health and /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.engine.ipc.message import Message
from rocmforge.engine.ipc.totals import Totals
from rocmforge.errors import Fault


class EngineState(StrEnum):
    """The stage of an engine process."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # it died; a new one is being started, with backoff
    FAILED = "failed"  # it died again and again, and is not started any more
    DRAINING = "draining"  # finishes what it has, takes nothing new
    STOPPED = "stopped"
    DISTRUSTED = "distrusted"  # proof found it wrong; takes nothing new until it is loaded again


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
class ProofStatus:
    """Whether a model's answers were right that were computed again since the server started."""

    is_running: bool  # whether a verifier has the model loaded
    problem: str | None  # why there is none
    samples: int = 0  # verified
    tokens: int = 0  # of these
    agreeing: int = 0  # tokens where device and reference find the same one most probable
    kl_sum: float = 0.0  # nats, of all tokens
    worst: float = 0.0  # nats, the largest difference of a log-probability
    error: float = 0.0  # relative, of the latest tokens
    expected: float = 0.0  # the part of it that rounding explains
    seconds: float = 0.0  # that the verifier computed
    dropped: tuple[tuple[str, int], ...] = ()  # samples, by reason
    alarms: int = 0
    alarm: str | None = None  # the first since the model was loaded
    alarm_at: float | None = None  # seconds since the epoch
    bundle: str | None = None  # the file that was written last


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
    last_fault: Fault | None = None  # of what kind that was
    faults: Mapping[Fault, int] = field(default_factory=dict)  # how often it died of what
    silence_s: float = 0.0  # since there was news of loading, or of the requests there are
    proof: ProofStatus | None = None  # None = nothing is verified
    is_wedged: bool = False  # the process was killed and does not end: its device or driver hangs
