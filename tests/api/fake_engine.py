"""An engine without a model or a process: it says what a test tells it to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from litestar import Litestar

from rocmforge.api.app import build_app as build_fleet_app
from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.http.keys import Keyring
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.metrics.requests import Metrics
from rocmforge.backend.protocol import DeviceInfo, RunnerInfo
from rocmforge.engine.constraint.grammar_checker import GrammarChecker
from rocmforge.engine.ipc.params import (
    FinishReason,
    GenerateRequest,
    RequestTiming,
    TokenEvent,
    TokenLogprob,
)
from rocmforge.engine.ipc.status import EngineState, EngineStats, EngineStatus
from rocmforge.errors import RocmForgeError
from rocmforge.fleet.entry import Engine, FleetEntry
from rocmforge.fleet.fleet import Fleet
from rocmforge.fleet.model import ServedModel
from rocmforge.gguf.tokenizer import read_templates, read_tokenizer
from rocmforge.sensors.kernel_log import KernelEvent
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.token_sets import TokenSets
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api import tiny

BLOCKS = 64
MAX_CONTEXT = 2048

RUNNER = RunnerInfo(
    backend="fake",
    device=DeviceInfo(
        index=0, name="fake device", target="fake", memory_total=1 << 30, memory_free=1 << 30
    ),
    block_size=16,
    num_blocks=BLOCKS,
    max_context=MAX_CONTEXT,
    vocab_size=tiny.VOCAB_SIZE,
    pipeline_depth=1,
    weights_bytes=0,
    kv_bytes=0,
    kv_dtype="f32",
    graphs="checked",
    notes=(),
)

Batch = tuple[TokenEvent, ...]


Script = Callable[[GenerateRequest], Sequence[Batch | Exception]]
"""What a sequence gets, one entry for each wake-up."""


def say(*steps: Sequence[int], finish: FinishReason = FinishReason.STOP) -> Script:
    """One event for each step's tokens, one wake-up each; the last one has the finish reason.

    What is known of the prompt comes with the first one and the last.
    """

    def script(request: GenerateRequest) -> list[Batch | Exception]:
        events = [_event(request, tuple(step)) for step in steps] or [TokenEvent(request_id=0)]
        timing = RequestTiming(
            arrival_ns=1, scheduled_ns=2, first_token_ns=3, finished_ns=time.monotonic_ns()
        )
        events[0] = _replaced(events[0], None, timing)
        events[-1] = _replaced(events[-1], finish, timing)
        return [(event,) for event in events]

    return script


def scored(script: Script) -> Script:
    """The same with the log-probabilities of the prompt before it, if they are asked for."""

    def with_scores(request: GenerateRequest) -> list[Batch | Exception]:
        wanted = request.sampling.prompt_logprobs
        steps = list(script(request))
        if wanted < 0:
            return steps
        scores = tuple(score(token, wanted) for token in request.prompt.token_ids[1:])
        return [(TokenEvent(request_id=0, prompt_logprobs=scores),), *steps]

    return with_scores


def score(token: int, num_top: int) -> TokenLogprob:
    """A log-probability that a test can predict: -1/8 of the token id's last digit."""
    top = tuple((token + i, -(token % 10) / 8 - i) for i in range(num_top))
    return TokenLogprob(token_id=token, logprob=-(token % 10) / 8, top=top)


def _event(request: GenerateRequest, ids: tuple[int, ...]) -> TokenEvent:
    wanted = request.sampling.num_logprobs
    logprobs = tuple(score(token, wanted) for token in ids) if wanted >= 0 else None
    return TokenEvent(request_id=0, token_ids=ids, logprobs=logprobs)


def _replaced(event: TokenEvent, finish: FinishReason | None, timing: RequestTiming) -> TokenEvent:
    return TokenEvent(
        request_id=0,
        token_ids=event.token_ids,
        logprobs=event.logprobs,
        finish_reason=finish,
        timing=timing,
        cached_tokens=3,
    )


class FakeHandle:
    """Plays a script; waits for ever after its end."""

    def __init__(self, engine: FakeEngine, steps: Sequence[Batch | Exception]) -> None:
        self._engine = engine
        self._steps = list(steps)
        self.is_closed = False
        self.resumed = engine.resumed

    async def next(self) -> Batch:
        """The next entry."""
        await asyncio.sleep(0)
        if not self._steps:
            await asyncio.Event().wait()
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if step[-1].finish_reason is not None:
            self._engine.live.discard(self)
        return step

    def close(self) -> None:
        """Frees what it holds."""
        self.is_closed = True
        self._engine.live.discard(self)


@dataclass(eq=False)
class FakeEngine:
    """Takes everything, unless told not to."""

    script: Script = field(default_factory=lambda: say([262], [267], [tiny.IM_END]))
    refuses: RocmForgeError | None = None
    refuses_after: int = 0
    submitted: list[GenerateRequest] = field(default_factory=list)
    live: set[FakeHandle] = field(default_factory=set)
    state: EngineState = EngineState.READY
    runner: RunnerInfo | None = RUNNER
    restarts: int = 0
    resumed: int = 0  # times that each request was
    is_fallback: bool = False
    last_error: str | None = None
    silence_s: float = 0.0
    is_wedged: bool = False

    @property
    def status(self) -> EngineStatus:
        """A snapshot; each live sequence holds one block."""
        return EngineStatus(
            state=self.state,
            stage="weights" if self.state is EngineState.LOADING else "",
            progress=0.25 if self.state is EngineState.LOADING else 1.0,
            runner=self.runner,
            is_fallback=self.is_fallback,
            fallback_reason="no GPU" if self.is_fallback else "",
            stats=EngineStats(
                running=len(self.live), blocks_total=BLOCKS, blocks_used=len(self.live)
            ),
            restarts=self.restarts,
            last_error=self.last_error,
            last_error_at=None if self.last_error is None else 1_700_000_000.25,
            silence_s=self.silence_s,
            is_wedged=self.is_wedged,
        )

    async def start(self) -> None:
        """Nothing to load."""

    async def wait_ready(self) -> None:
        """It is."""

    async def wait_given_up(self) -> RocmForgeError:
        """Nobody gives it up."""
        await asyncio.Event().wait()
        raise AssertionError

    def end_for_device(self, device: str, event: KernelEvent) -> None:
        """It has no device."""

    async def drain(self, timeout_s: float) -> bool:
        """Waits for nobody."""
        return True

    async def stop(self) -> None:
        """Takes no requests any more."""
        self.state = EngineState.STOPPED

    def submit(self, request: GenerateRequest) -> FakeHandle:
        """Starts a script."""
        if self.refuses is not None and len(self.submitted) >= self.refuses_after:
            raise self.refuses
        self.submitted.append(request)
        handle = FakeHandle(self, self.script(request))
        self.live.add(handle)
        return handle


@cache
def tiny_text() -> tuple[Tokenizer, ChatTemplates]:
    """The tiny tokenizer and its template; both are immutable."""
    data = tiny.metadata()
    tokenizer = Tokenizer(read_tokenizer(data))
    return tokenizer, ChatTemplates.compile(read_templates(data), tokenizer)


@cache
def grammar_checker() -> GrammarChecker:
    """One helper process for all tests."""
    return GrammarChecker()


def loaded_slot(engine: Engine, name: str = "tiny") -> FleetEntry:
    """An entry with that engine, which needs no loading."""
    entry = FleetEntry(name, lambda stats: engine)
    entry.open()
    entry.is_new = False
    return entry


def make_model(engine: Engine | None = None, **changes: Any) -> ServedModel:
    """A model on the tiny tokenizer, loaded in that engine."""
    tokenizer, templates = tiny_text()
    facts: dict[str, Any] = {
        "name": "tiny",
        "aliases": ("org/tiny-alias",),
        "tokenizer": tokenizer,
        "templates": templates,
        "grammars": grammar_checker(),
        "clock": lambda: 1_700_000_000.5,
        "started": 1_600_000_000.0,
        **changes,
    }
    if "entry" not in facts:
        facts["entry"] = loaded_slot(engine or FakeEngine(), facts["name"])
    return ServedModel(token_sets=TokenSets(facts["tokenizer"]), **facts)


def requested(model: ServedModel) -> RequestedModel:
    """The model as a request has it that nothing is known of."""
    return RequestedModel(served=model, metrics=Metrics(model.name, lambda: model.entry.status))


def build_app(
    model: ServedModel, settings: ApiSettings, keys: Keyring | None = None, **parts: Any
) -> Litestar:
    """The application that serves one model."""
    return build_fleet_app(Fleet([model]), settings, keys, **parts)
