"""Messages between the server process and the engine process."""

from __future__ import annotations

from rocmforge import errors
from rocmforge.backend.protocol import LoadOptions, RunnerInfo
from rocmforge.engine.ipc.message import Message
from rocmforge.engine.ipc.params import GenerateRequest, TokenEvent, TokenPieces
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.engine.ipc.tier_options import NO_TIERS, TierOptions
from rocmforge.engine.ipc.totals import Totals
from rocmforge.errors import EngineError, Fault, RocmForgeError
from rocmforge.logs import LogFormat
from rocmforge.models.checkpoint import Identity


class Start(Message, frozen=True, tag=True):
    """The first command: what to load, and how to run it."""

    backend: str  # a name, "auto", or package.module:function
    model: str  # path
    options: LoadOptions
    max_waiting: int
    max_score_rows: int
    prefix_cache: bool
    max_stall_ns: int
    log_level: str
    log_format: LogFormat
    totals: Totals  # of the engine process before this one
    vocabulary: TokenPieces | None
    draft: str | None = None  # path of the draft model
    predicts: bool = False  # whether the model's predictor drafts
    # `options.draft_tokens` if it has no room and is left out; None = it may not be.
    drafts_without_predictor: int | None = None
    identity: Identity | None = None  # what the model's file should be; None = whatever it is
    tiers: TierOptions = NO_TIERS
    mmproj: str | None = None  # path of the tower's file; None = the one beside the model, if any


class DefineGrammar(Message, frozen=True, tag=True):
    """The text that requests refer to by this name; see `grammar_name`."""

    name: str
    text: str


class ForgetGrammar(Message, frozen=True, tag=True):
    """No unfinished request refers to it any more."""

    name: str


class Cancel(Message, frozen=True, tag=True):
    """Nobody waits for this request any more."""

    request_id: int


class RecordSteps(Message, frozen=True, tag=True):
    """Records what requests are given, so that it can be computed again.

    Takes the place of what was said before.
    """

    requests: tuple[int, ...]  # ids; a request may come later, or have ended
    until: int  # the step before which this ends, as `Totals.steps` counts


class Shutdown(Message, frozen=True, tag=True):
    """Free the device and exit."""


class Progress(Message, frozen=True, tag=True):
    """Loading gets on."""

    stage: str
    fraction: float  # 0..1


class Ready(Message, frozen=True, tag=True):
    """Loading is done."""

    runner: RunnerInfo
    is_fallback: bool
    fallback_reason: str


class LoadFailed(Message, frozen=True, tag=True):
    """Loading failed; see `describe_error`."""

    kind: str
    message: str
    fields: dict[str, str | int | float | list[str] | None]


class StepReport(Message, frozen=True, tag=True):
    """The events and counters of one step."""

    events: tuple[TokenEvent, ...]
    stats: EngineStats


class Fatal(Message, frozen=True, tag=True):
    """The engine process ends, because of this; `events` are the last ones of all requests."""

    message: str
    events: tuple[TokenEvent, ...]
    fault: Fault = Fault.ERROR


Command = Start | DefineGrammar | ForgetGrammar | GenerateRequest | Cancel | RecordSteps | Shutdown
Report = Progress | Ready | LoadFailed | StepReport | Fatal


def describe_error(error: RocmForgeError) -> LoadFailed:
    """Puts an error into a message: class name, text and fields."""
    fields = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(error).items()
        if name != "message"
    }
    return LoadFailed(kind=type(error).__name__, message=error.message, fields=fields)


def rebuild_error(failure: LoadFailed) -> RocmForgeError:
    """Rebuilds the error that `describe_error` was given, with its class and fields."""
    kind = getattr(errors, failure.kind, EngineError)
    error: RocmForgeError = kind.__new__(kind)
    RocmForgeError.__init__(error, failure.message)
    for name, value in failure.fields.items():
        setattr(error, name, tuple(value) if isinstance(value, list) else value)
    if "fault" in failure.fields:
        error.fault = Fault(error.fault)  # a text on its way
    return error
