"""The engine as the HTTP side sees it: submit a prompt, await events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from msgspec import structs

from rocmforge.backend.protocol import LoadOptions, RunnerInfo
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.engine_process import EngineProcess
from rocmforge.engine.client.handle import GenerationHandle
from rocmforge.engine.client.journal import Journal
from rocmforge.engine.client.prompt_checks import check_prompt
from rocmforge.engine.client.shared_grammars import SharedGrammars
from rocmforge.engine.client.verifier import Verifier
from rocmforge.engine.ipc.messages import (
    Cancel,
    Command,
    Fatal,
    LoadFailed,
    Progress,
    Ready,
    Report,
    Start,
    StepReport,
    rebuild_error,
)
from rocmforge.engine.ipc.params import (
    NO_KEY,
    FinishReason,
    GenerateRequest,
    Share,
    TokenEvent,
)
from rocmforge.engine.ipc.status import EngineState, EngineStats, EngineStatus
from rocmforge.engine.ipc.totals import Totals
from rocmforge.errors import (
    Draining,
    EngineDied,
    NotReady,
    QueueFull,
    RocmForgeError,
    UnsupportedFeature,
)

logger = logging.getLogger(__name__)

_DEADLINE_GRACE_S = 0.1
"""For the engine to end a request by itself, which then tells more of it."""
_RETRY_AFTER_S = 1.0
_RETRY_AFTER_LOAD_S = 5.0
_PLACES_PER_FREE_PLACE = 3
"""How many places of the queue a key may hold for each one that is free.

So one that floods the queue leaves a quarter of it to others, two leave a seventh (dynamic
thresholds: Choudhury and Hahne, 1998).
"""


class AsyncEngine:
    """Keeps an engine process alive and shares its work among handles. One event loop only.

    Args:
        config: what to run and how.
        totals: what its counters begin with; None = at 0.
        verifier: has a sample of what is served computed again; None = nothing is.
    """

    def __init__(
        self,
        config: EngineConfig,
        totals: Totals | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self._config = config
        self._verifier = verifier
        self._phase = EngineState.LOADING  # of the process; draining is the server's business
        self._is_draining = False
        self._process: EngineProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._settled = asyncio.Event()  # ready, or given up
        self._load_error: RocmForgeError | None = None
        self._failure: RocmForgeError | None = None  # what this process said before it ended
        self._last_error: str | None = None
        self._last_error_at: float | None = None
        self._killed_at: float | None = None  # loop time
        self._is_wedged = False
        self._ready: Ready | None = None
        self._progress = Progress(stage="starting", fraction=0.0)
        self._stats = EngineStats(totals=totals or Totals())
        self._restarts = 0
        self._backoff_s = config.restart_backoff_s
        self._ids = count()
        self._live: dict[int, GenerationHandle] = {}
        self._held: Counter[int] = Counter()  # live requests by key
        self._durations: deque[float] = deque(maxlen=16)  # seconds that requests took lately
        self._journal = Journal() if config.resume else None
        self._grammars = SharedGrammars()
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_news = 0.0  # loop time of the last step report

    # --- life ---

    async def start(self) -> None:
        """Begins to load; returns at once."""
        self._tasks = [
            asyncio.create_task(self._supervise(), name="engine supervisor"),
            asyncio.create_task(self._watch(), name="engine watchdog"),
        ]

    async def wait_ready(self) -> None:
        """Waits until requests are taken.

        Raises:
            ModelLoadError, ConfigurationError, OutOfMemory, ...: the model cannot be loaded.
            EngineDied: the process ended while loading, or the engine was stopped.
        """
        await self._settled.wait()
        if self._load_error is not None:
            raise self._load_error

    async def drain(self, timeout_s: float) -> bool:
        """Takes nothing new and waits for what is running; False if that took too long."""
        self._is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Ends the process; whatever still runs gets an error. Idempotent."""
        was_ready = self._phase is EngineState.READY
        self._give_up(EngineDied("The engine was stopped."))
        self._fail_live("The server is shutting down.")
        if self._process is not None:
            if not was_ready:
                self._process.kill("was stopped while loading")
            await self._process.shut_down(self._config.stop_grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._verifier is not None:
            await self._verifier.end()

    @property
    def status(self) -> EngineStatus:
        """A snapshot."""
        is_stopped = self._phase is EngineState.STOPPED
        is_loading = self._phase in (EngineState.LOADING, EngineState.RESTARTING)
        return EngineStatus(
            state=EngineState.DRAINING if self._is_draining and not is_stopped else self._state,
            stage=self._progress.stage if is_loading else "",
            progress=self._progress.fraction if is_loading else 1.0,
            runner=self._runner,
            is_fallback=self._ready is not None and self._ready.is_fallback,
            fallback_reason=self._ready.fallback_reason if self._ready is not None else "",
            stats=self._stats,
            restarts=self._restarts,
            last_error=self._last_error,
            last_error_at=self._last_error_at,
            silence_s=self._silence_s(),
            is_wedged=self._is_wedged,
            proof=None if self._verifier is None else self._verifier.status,
        )

    @property
    def pid(self) -> int | None:
        """The engine process's id, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def _state(self) -> EngineState:
        """The phase, and whether what the engine computes is trusted."""
        is_distrusted = self._verifier is not None and self._verifier.distrusts
        if is_distrusted and self._phase is EngineState.READY:
            return EngineState.DISTRUSTED
        return self._phase

    @property
    def _runner(self) -> RunnerInfo | None:
        return self._ready.runner if self._ready is not None else None

    # --- requests ---

    def submit(self, request: GenerateRequest) -> GenerationHandle:
        """Sends a request to the engine, under a number of its own.

        Args:
            request: whose prompt and output fit into the context.

        Raises:
            Draining, NotReady, QueueFull: not now.
            InvalidParameter: the prompt is empty, a token id is not in the vocabulary, or rows of
                embeddings have another width than the model's.
            ContextLengthExceeded: a prompt with embeddings does not fit into the context.
            UnsupportedFeature: a grammar, a logits processor, an embedding, an adapter or rows of
                embeddings that the backend has no means for.
        """
        process, runner = self._admit(request.share)
        sampling = request.sampling
        check_prompt(request, runner)
        if sampling.grammar:
            self._check_constrains(runner)
        if sampling.thinking is not None and not runner.masks_tokens:
            raise UnsupportedFeature(
                f"The backend {runner.backend!r} cannot end a section of reasoning, so budgets for "
                "it are not available on this server."
            )
        if sampling.pooling is not None and not runner.hidden_size:
            raise UnsupportedFeature(
                f"The backend {runner.backend!r} cannot return hidden states, so embeddings are "
                "not available on this server."
            )
        if sampling.adapter >= len(runner.adapters):
            raise UnsupportedFeature(
                f"The backend {runner.backend!r} has not loaded the LoRA adapter.", param="model"
            )
        missing = {use.name for use in sampling.processors} - {*runner.logits_processors}
        if missing:
            raise UnsupportedFeature(
                f"The backend {runner.backend!r} has no logits processor "
                f"{', '.join(sorted(missing))}."
            )
        request_id = next(self._ids)
        grammar = self._grammars.open(request_id, sampling.grammar, process.send)
        request = structs.replace(
            request, request_id=request_id, sampling=structs.replace(sampling, grammar=grammar)
        )
        if self._verifier is not None:
            request = self._verifier.open(request)
        try:
            process.send(request)  # what cannot be sent must not be waited for
        except BaseException:
            self._close(request_id)
            raise
        if not self._live:
            self._last_news = asyncio.get_running_loop().time()
            self._idle.clear()
        handle = GenerationHandle(request.request_id, self._cancel, request.share.key)
        if request.deadline_ns is not None:
            left_s = (request.deadline_ns - time.monotonic_ns()) * 1e-9
            handle.expires = asyncio.get_running_loop().call_later(
                left_s + _DEADLINE_GRACE_S, self._expire, request.request_id
            )
        self._live[request.request_id] = handle
        self._held[request.share.key] += 1
        if self._journal is not None:
            self._journal.open(request)
        return handle

    def _admit(self, share: Share) -> tuple[EngineProcess, RunnerInfo]:
        if self._is_draining:
            raise Draining("The server is shutting down.", retry_after_s=_RETRY_AFTER_LOAD_S)
        if self._state is not EngineState.READY:
            raise NotReady(
                f"The model is not ready: {self._state}.", retry_after_s=_RETRY_AFTER_LOAD_S
            )
        if not self._has_place(share):
            held = self._held[share.key]
            whose = f", {held} of them with this key" if share.key != NO_KEY.key else ""
            raise QueueFull(
                f"{len(self._live)} requests are running or waiting{whose}; try again later.",
                retry_after_s=self._place_free_in_s(),
            )
        assert self._process is not None
        assert self._runner is not None
        return self._process, self._runner

    def _has_place(self, share: Share) -> bool:
        """Checks that the queue has room, and that the request's key leaves some to others."""
        max_running = self._config.options.max_sequences
        free = max_running + self._config.max_waiting - len(self._live)
        if free <= 0 or share.key == NO_KEY.key or len(self._live) < max_running:
            return free > 0
        return self._held[share.key] < _PLACES_PER_FREE_PLACE * free

    def _place_free_in_s(self) -> float:
        """Estimates seconds until a request ends, if those held now take as long as others did."""
        if not self._durations:
            return _RETRY_AFTER_S
        took_s = sum(self._durations) / len(self._durations)
        return max(_RETRY_AFTER_S, took_s / len(self._live))

    def _check_constrains(self, runner: RunnerInfo) -> None:
        if not runner.masks_tokens:
            reason = f"The backend {runner.backend!r} cannot constrain its output to a grammar"
        elif self._config.vocabulary is None:
            reason = "The model's vocabulary cannot spell every text, or has no end token"
        else:
            return
        raise UnsupportedFeature(
            f"{reason}, so structured output and forced tool calls are not available on this "
            "server."
        )

    def _cancel(self, request_id: int) -> None:
        if self._forget(request_id):
            self._send(Cancel(request_id=request_id))

    def _send(self, command: Command) -> None:
        """Sends a command to the process, if there is one."""
        if self._process is not None:
            self._process.send(command)

    def _expire(self, request_id: int) -> None:
        """Ends a request whose deadline has passed, whatever the engine is doing."""
        handle = self._live[request_id]
        self._cancel(request_id)
        event = TokenEvent(request_id=request_id, finish_reason=FinishReason.DEADLINE)
        handle.deliver(event, asyncio.get_running_loop().time())

    def _forget(self, request_id: int) -> bool:
        handle = self._live.pop(request_id, None)
        if handle is not None:
            handle.stop_clock()
            self._durations.append(asyncio.get_running_loop().time() - handle.began)
            self._held[handle.key] -= 1
        self._close(request_id)
        if not self._live:
            self._idle.set()
        return handle is not None

    def _close(self, request_id: int) -> None:
        """Lets go of what is kept beside the handle of a request."""
        self._grammars.close(request_id, self._send)
        if self._journal is not None:
            self._journal.close(request_id)
        if self._verifier is not None:
            self._verifier.close(request_id)

    # --- reports ---

    def _on_report(self, report: Report) -> None:
        match report:
            case StepReport():
                self._last_news = asyncio.get_running_loop().time()
                if report.stats.totals.steps > self._stats.totals.steps:
                    self._backoff_s = self._config.restart_backoff_s
                self._stats = report.stats
                self._deliver(report.events)
            case Progress():
                self._last_news = asyncio.get_running_loop().time()
                self._progress = report
            case Ready():
                self._ready = report
                self._begin_proof(report.runner)
                self._phase = EngineState.READY
                self._settled.set()
                self._resume()
            case LoadFailed():
                self._failure = rebuild_error(report)
            case Fatal():
                self._failure = EngineDied(report.message)
                self._begin_restart()
                self._deliver([e for e in report.events if not self._can_resume(e.request_id)])

    def _deliver(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            handle = self._live.get(event.request_id)
            if handle is None:
                continue  # closed in the meantime
            if self._journal is not None:
                self._journal.note(event)
            if self._verifier is not None:
                event = self._verifier.note(event)
            if event.finish_reason is not None:
                self._forget(event.request_id)
            handle.deliver(event, self._last_news)

    def _fail_live(self, message: str, *, keep_resumable: bool = False) -> None:
        self._deliver(
            [
                TokenEvent(request_id=request_id, finish_reason=FinishReason.DIED, error=message)
                for request_id in self._live
                if not (keep_resumable and self._can_resume(request_id))
            ]
        )

    def _can_resume(self, request_id: int) -> bool:
        return self._journal is not None and self._journal.can_resume(request_id)

    def _resume(self) -> None:
        """Hands a new process what the one before it had not finished."""
        if self._journal is None or not self._live:
            return
        assert self._process is not None
        self._last_news = asyncio.get_running_loop().time()
        requests = self._journal.resume()
        logger.warning("requests continued in the new engine process: %d", len(requests))
        self._grammars.send_all(self._process.send)
        for request in requests:
            self._process.send(request)

    # --- supervision ---

    async def _supervise(self) -> None:
        """Starts the process, and again whenever it dies. Only the first load fails for good."""
        while True:
            error = await self._live_once()
            self._fail_live(error.message, keep_resumable=True)
            if self._phase is EngineState.STOPPED:
                return
            self._note_error(error.message)
            if self._ready is None:
                self._give_up(error)
                return
            logger.error("%s (the engine is started again in %g s)", error.message, self._backoff_s)
            self._restarts += 1
            await asyncio.sleep(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, self._config.restart_backoff_max_s)

    async def _live_once(self) -> RocmForgeError:
        """Runs one process to its end; says why it ended."""
        self._failure = None
        self._last_news = asyncio.get_running_loop().time()
        self._progress = Progress(stage="starting", fraction=0.0)
        try:
            self._process = await EngineProcess.spawn(self._start_message(), self._on_report)
        except OSError as error:
            return EngineDied(f"The engine process could not be started: {error}.")
        await self._process.disconnected()
        self._begin_restart()
        verdict = await self._process.wait(self._config.stop_grace_s)
        self._process = None
        self._killed_at = None
        self._is_wedged = False
        return self._failure or EngineDied(f"The engine process {verdict}.")

    def _begin_proof(self, runner: RunnerInfo) -> None:
        """Has the model loaded a second time, to compute again what is drawn."""
        config = self._config
        if self._verifier is not None:
            log = config.log_level, config.log_format
            self._verifier.begin(str(config.model), config.identity, runner, self._options(), log)

    def _begin_restart(self) -> None:
        """Takes no more requests once the process is known to end, before it has ended."""
        if self._phase is EngineState.READY:
            self._phase = EngineState.RESTARTING
            self._settled.clear()
            self._stats = self._stats.at_rest()

    def _start_message(self) -> Start:
        config = self._config
        return Start(
            backend=config.backend,
            model=str(config.model),
            identity=config.identity,
            draft=None if config.draft is None else str(config.draft),
            predicts=config.predicts,
            mmproj=None if config.mmproj is None else str(config.mmproj),
            drafts_without_predictor=config.drafts_without_predictor,
            options=self._options(),
            max_waiting=config.max_waiting,
            max_score_rows=config.max_score_rows,
            prefix_cache=config.prefix_cache,
            tiers=config.tiers,
            max_stall_ns=config.max_stall_ns,
            log_level=config.log_level,
            log_format=config.log_format,
            totals=self._stats.totals,
            vocabulary=config.vocabulary,
        )

    def _options(self) -> LoadOptions:
        """Returns the options to load with; the context of the first process is kept by others.

        They continue its requests, and may find less memory free for a moment.
        """
        options, runner = self._config.options, self._runner
        if options.least_context is None or runner is None:
            return options
        context = min(runner.max_context, options.max_context)
        return replace(options, max_context=context, least_context=None)

    def _note_error(self, message: str) -> None:
        self._last_error = message
        self._last_error_at = time.time()

    def _silence_s(self) -> float:
        """Returns the seconds since there was news of loading, or of the engine's requests."""
        is_idle = self._phase is EngineState.READY and not self._live
        if self._process is None or is_idle or self._phase is EngineState.STOPPED:
            return 0.0
        # Not asked of the loop, whose clock is the same: worker threads read the status too.
        return time.monotonic() - self._last_news

    def _give_up(self, error: RocmForgeError) -> None:
        self._phase = EngineState.STOPPED
        self._load_error = self._load_error or error
        self._settled.set()

    async def _watch(self) -> None:
        """Kills a process that is stuck, and cancels requests that nobody reads."""
        config = self._config
        loop = asyncio.get_running_loop()
        while True:
            limits_s = config.step_timeout_s, config.load_timeout_s, config.client_stall_s
            await asyncio.sleep(min(limits_s) / 4)
            now = loop.time()
            silence_s = self._silence_s()
            is_loading = self._phase is not EngineState.READY
            limit_s = config.load_timeout_s if is_loading else config.step_timeout_s
            if silence_s > limit_s and self._process is not None:
                where = f" while loading ({self._progress.stage})" if is_loading else ""
                self._process.kill(f"was killed: it gave no news for {silence_s:.1f} s{where}")
                self._killed_at = self._killed_at or now
            if self._killed_at is not None and now - self._killed_at > config.stop_grace_s:
                self._give_up_on_wedged()
            for handle in list(self._live.values()):
                if handle.is_stalled(now, config.client_stall_s):
                    logger.warning("request %d is not being read: cancelled", handle.request_id)
                    handle.close()

    def _give_up_on_wedged(self) -> None:
        """Gives up on a killed process that does not end: the kernel waits for the device."""
        if self._is_wedged:
            return
        message = (
            f"The engine process {self.pid} gave no news and does not end, though it was killed: "
            "its device or driver hangs. See dmesg; the machine may have to be restarted."
        )
        logger.error("%s", message)
        self._is_wedged = True
        self._note_error(message)
        self._begin_restart()
        self._fail_live(message)
