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
from rocmforge.engine.client.faults import ADVICE, ENDED, advice, fault_of, refine
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
    Fault,
    NotReady,
    OutOfMemory,
    QueueFull,
    RocmForgeError,
    UnsupportedFeature,
)
from rocmforge.sensors.kernel_log import KernelEvent
from rocmforge.sensors.watch import DeviceWatch

logger = logging.getLogger(__name__)

_DEADLINE_GRACE_S = 0.1
"""For the engine to end a request by itself, which then tells more of it."""
_FINISHED = frozenset({FinishReason.STOP, FinishReason.LENGTH})
_WITNESS_S = 0.5  # for the kernel's words about a device to be read, once a process has ended
_WITNESSED_S = 60.0  # before the last news of a process: what happened then may be why it ended
_MOST_DOUBLINGS = 20  # of the pause before a restart
_SOON_S = 0.01  # after a time is up
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
        watch: of the devices; None = nobody looks after them.
    """

    def __init__(
        self,
        config: EngineConfig,
        totals: Totals | None = None,
        verifier: Verifier | None = None,
        watch: DeviceWatch | None = None,
    ) -> None:
        self._config = config
        self._verifier = verifier
        self._watch = watch
        self._phase = EngineState.LOADING  # of the process; draining is the server's business
        self._is_draining = False
        self._process: EngineProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._settled = asyncio.Event()  # ready, or given up
        self._load_error: RocmForgeError | None = None
        self._failure: RocmForgeError | None = None  # what this process said before it ended
        self._last_error: str | None = None
        self._last_error_at: float | None = None
        self._last_fault: Fault | None = None
        self._fault = Fault.CRASH  # of this process, should it end now
        self._faults: Counter[Fault] = Counter()
        self._failures = 0  # processes that ended one after the other, no request finished between
        self._ready_at = 0.0  # loop time
        self._ended_at: float | None = None  # loop time: when the process before was no more
        self._given_up = asyncio.Event()
        self._killed_at: float | None = None  # loop time
        self._is_wedged = False
        self._ready: Ready | None = None
        self._progress = Progress(stage="starting", fraction=0.0)
        self._stats = EngineStats(totals=totals or Totals())
        self._restarts = 0
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
            asyncio.create_task(self._guard(), name="engine watchdog"),
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

    async def wait_given_up(self) -> RocmForgeError:
        """Waits until an engine that was ready will never be again; returns why."""
        await self._given_up.wait()
        assert self._load_error is not None
        return self._load_error

    def end_for_device(self, device: str, event: KernelEvent) -> None:
        """Replaces the process if it uses a device that was reset or lost.

        It may go on as if nothing had happened, with weights that are not there any more.

        Args:
            device: its PCI address.
            event: one of `ENDED`.
        """
        runner = self._runner
        if self._process is None or runner is None or device not in runner.bus_ids:
            return
        self._fault = fault_of(event)
        self._process.kill(f"was killed: its device {device} {ENDED[event]}")

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
        is_stopped = self._phase in (EngineState.STOPPED, EngineState.FAILED)
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
            last_fault=self._last_fault,
            faults=dict(self._faults),
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
    def _whose(self) -> str:
        """The model, and its devices if they have addresses, for the head of a line of the log."""
        devices = () if self._runner is None else self._runner.bus_ids
        return f"{self._config.name} on {', '.join(devices)}" if devices else self._config.name

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
        if self._phase is EngineState.FAILED and self._load_error is not None:
            raise NotReady(self._load_error.message, retry_after_s=_RETRY_AFTER_LOAD_S)
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
                self._stats = report.stats
                self._deliver(report.events)
            case Progress():
                self._last_news = asyncio.get_running_loop().time()
                self._progress = report
            case Ready():
                self._ready = report
                self._begin_proof(report.runner)
                self._phase = EngineState.READY
                self._ready_at = asyncio.get_running_loop().time()
                self._settled.set()
                if self._ended_at is not None:
                    away_s = self._ready_at - self._ended_at
                    logger.warning("%s: serves again after %.1f s", self._whose, away_s)
                self._resume()
            case LoadFailed():
                self._failure = rebuild_error(report)
                self._fault = self._failure.fault
            case Fatal():
                self._failure = EngineDied(report.message)
                self._fault = report.fault
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
            if event.finish_reason in _FINISHED:
                self._failures = 0
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
        logger.warning(
            "%s: requests continued in the new engine process: %d", self._whose, len(requests)
        )
        self._grammars.send_all(self._process.send)
        for request in requests:
            self._process.send(request)

    # --- supervision ---

    async def _supervise(self) -> None:
        """Starts the process, and again whenever it dies. Only the first load fails for good."""
        config = self._config
        while True:
            error = await self._live_once()
            self._fail_live(error.message, keep_resumable=True)
            if self._phase is EngineState.STOPPED:
                return
            await self._note_end(error)
            if self._ready is None:
                self._give_up(error)
                return
            if 0 < config.restart_limit < self._failures:
                self._give_up_on_device(error)
                return
            pause_s = config.restart_backoff_s * 2.0 ** min(self._failures - 1, _MOST_DOUBLINGS)
            pause_s = min(pause_s, config.restart_backoff_max_s)
            logger.error(
                "%s: %s%s (%s; the engine is started again in %g s)",
                *(self._whose, self._last_error, advice(self._fault, self._failures)),
                *(self._fault, pause_s),
            )
            self._restarts += 1
            await asyncio.sleep(pause_s)

    async def _note_end(self, error: RocmForgeError) -> None:
        """Notes why a process has ended, with what has been seen of its devices since."""
        now = asyncio.get_running_loop().time()
        if self._ready_at and now - self._ready_at > self._config.restart_calm_s:
            self._failures = 0
        self._failures += 1
        message = f"{error.message.rstrip('.')}."
        if self._watch is not None and self._runner is not None:
            devices = self._runner.bus_ids
            await asyncio.to_thread(self._watch.look_soon, _WITNESS_S)
            since = time.time() - (now - self._last_news) - _WITNESSED_S
            account = self._watch.account(devices, since)
            message += account
            events = {event.event for event in self._watch.events(devices, since)}
            self._fault = refine(self._fault, events)
        self._faults[self._fault] += 1
        self._note_error(message, self._fault)

    def _give_up_on_device(self, error: RocmForgeError) -> None:
        """Starts no more processes, as they end one after the other: says so, and what to do."""
        final = EngineDied(
            f"The engine process ended {self._failures} times without finishing a request "
            f"({self._fault}), and is not started again. The last reason: "
            f"{error.message.rstrip('.')}. {ADVICE[self._fault]} Then have the model loaded again "
            "(POST /models/load), or restart the server."
        )
        self._fail_live(final.message)
        logger.error("%s: %s", self._whose, final.message)
        self._note_error(final.message, self._fault)
        self._give_up(final, EngineState.FAILED)

    async def _live_once(self) -> RocmForgeError:
        """Runs one process to its end; says why it ended."""
        self._failure = None
        self._fault = Fault.CRASH
        self._last_news = asyncio.get_running_loop().time()
        self._progress = Progress(stage="starting", fraction=0.0)
        try:
            self._process = await EngineProcess.spawn(self._start_message(), self._on_report)
        except OSError as error:
            return EngineDied(f"The engine process could not be started: {error}.")
        await self._process.disconnected()
        self._begin_restart()
        self._ended_at = asyncio.get_running_loop().time()
        verdict = await self._process.wait(self._config.stop_grace_s)
        self._process = None
        self._killed_at = None
        self._is_wedged = False
        if isinstance(self._failure, OutOfMemory) and self._watch is not None:
            self._failure.message += await asyncio.to_thread(self._watch.holders)
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

    def _note_error(self, message: str, fault: Fault) -> None:
        self._last_error = message
        self._last_fault = fault
        self._last_error_at = time.time()

    def _silence_s(self) -> float:
        """Returns the seconds since there was news of loading, or of the engine's requests."""
        is_idle = self._phase is EngineState.READY and not self._live
        has_ended = self._phase in (EngineState.STOPPED, EngineState.FAILED)
        if self._process is None or is_idle or has_ended:
            return 0.0
        # Not asked of the loop, whose clock is the same: worker threads read the status too.
        return time.monotonic() - self._last_news

    def _give_up(self, error: RocmForgeError, phase: EngineState = EngineState.STOPPED) -> None:
        self._phase = phase
        self._load_error = self._load_error or error
        self._settled.set()
        self._given_up.set()

    async def _guard(self) -> None:
        """Kills a process that is stuck, and cancels requests that nobody reads.

        It wakes up a few times in the shortest of the limits, and when one is up.
        """
        config = self._config
        loop = asyncio.get_running_loop()
        limits_s = config.step_timeout_s, config.load_timeout_s, config.client_stall_s
        while True:
            left_s = self._silence_limit_s() - self._silence_s()
            pause_s = min(limits_s) / 4
            await asyncio.sleep(min(pause_s, left_s + _SOON_S) if left_s > 0 else pause_s)
            now = loop.time()
            silence_s, limit_s = self._silence_s(), self._silence_limit_s()
            is_loading = self._phase is not EngineState.READY
            if silence_s > limit_s and self._process is not None:
                where = f" while loading ({self._progress.stage})" if is_loading else ""
                self._fault = Fault.HANG
                self._process.kill(f"was killed: it gave no news for {silence_s:.1f} s{where}")
                self._killed_at = self._killed_at or now
            if self._killed_at is not None and now - self._killed_at > config.stop_grace_s:
                self._give_up_on_wedged()
            for handle in list(self._live.values()):
                if handle.is_stalled(now, config.client_stall_s):
                    logger.warning("request %d is not being read: cancelled", handle.request_id)
                    handle.close()

    def _silence_limit_s(self) -> float:
        """Returns the seconds of silence after which the process is taken for stuck."""
        is_ready = self._phase is EngineState.READY
        return self._config.step_timeout_s if is_ready else self._config.load_timeout_s

    def _give_up_on_wedged(self) -> None:
        """Gives up on a killed process that does not end: the kernel waits for the device."""
        if self._is_wedged:
            return
        message = (
            f"The engine process {self.pid} gave no news and does not end, though it was killed: "
            "its device or driver hangs. See dmesg; the machine may have to be restarted."
        )
        logger.error("%s: %s", self._whose, message)
        self._is_wedged = True
        self._note_error(message, Fault.HANG)
        self._begin_restart()
        self._fail_live(message)
