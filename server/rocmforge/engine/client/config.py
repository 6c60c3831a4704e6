"""The operator's settings of one engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.ipc.params import TokenPieces
from rocmforge.engine.ipc.tier_options import NO_TIERS, TierOptions
from rocmforge.logs import LogFormat
from rocmforge.models.checkpoint import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine, on both sides of the process boundary."""

    backend: str  # a name, "auto", or package.module:function
    model: Path
    name: str = "the model"  # by which clients know it
    options: LoadOptions
    identity: Identity | None = None  # of the model's file, which must not become another model
    vocabulary: TokenPieces | None = None  # None = requests cannot be constrained by a grammar
    draft: Path | None = None  # the draft model
    predicts: bool = False  # whether the model's predictor drafts, if it has one
    drafts_without_predictor: int | None = None  # as in `Start`
    mmproj: Path | None = None  # the tower's file; None = the one beside the model, if there is one
    max_waiting: int = 256  # unfinished requests beyond options.max_sequences
    max_score_rows: int = 256  # prompt tokens scored in one step
    prefix_cache: bool = True
    tiers: TierOptions = NO_TIERS
    max_stall_ns: int = 0  # that decodes may wait for prompts; 0 = however long
    resume: bool = False  # go on with requests in a new process when one dies
    log_level: str = "WARNING"  # of the engine process, which logs to stderr
    log_format: LogFormat = "text"
    step_timeout_s: float = 300.0  # without news while work is pending: the engine is killed
    load_timeout_s: float = 600.0  # without news while the model is loaded: the same
    client_stall_s: float = 60.0  # a handle that is not read for so long is cancelled
    restart_backoff_s: float = 0.5  # before the first restart; doubles until a request is finished
    restart_backoff_max_s: float = 30.0
    restart_limit: int = 10  # restarts without a finished request between them; 0 = no limit
    restart_calm_s: float = 600.0  # after so long, the end of a process is a first one again
    stop_grace_s: float = 10.0  # for the engine process to end by itself
