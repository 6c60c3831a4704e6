"""Supervision of an engine process: it is started, watched, started again, or given up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import replace

from rocmforge.backend.protocol import LoadOptions, RunnerInfo
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.engine_process import EngineProcess
from rocmforge.engine.client.faults import ADVICE, ENDED, advice, fault_of, refine
from rocmforge.engine.client.live_requests import LiveRequests
from rocmforge.engine.client.verifier import Verifier
from rocmforge.engine.ipc.messages import (
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
from rocmforge.engine.ipc.status import EngineState, EngineStats, EngineStatus
from rocmforge.engine.ipc.totals import Totals
from rocmforge.errors import EngineDied, Fault, OutOfMemory, RocmForgeError
from rocmforge.sensors.kernel_log import KernelEvent
from rocmforge.sensors.watch import DeviceWatch

logger = logging.getLogger(__name__)

_WITNESS_S = 0.5  # for the kernel's words about a device to be read, once a process has ended
_WITNESSED_S = 60.0  # before the last news of a process: what happened then may be why it ended
_MOST_DOUBLINGS = 20  # of the pause before a restart
_SOON_S = 0.01  # after a time is up


class Supervisor:
    """Starts the process of an engine, and again whenever it ends or hangs. One event loop only.

    Args:
        config: what to run and how.
        totals: what its counters begin with.
        verifier: is started with the process; None = nothing is computed again.
        watch: of the devices; None = nobody looks after them.

    Attributes:
        requests: what the process has to do.
        load_error: why there is no process and will be none; None = there is, or will be one.
        process: the one there is.
    """

    def __init__(
        self,
        config: EngineConfig,
        totals: Totals,
        verifier: Verifier | None,
        watch: DeviceWatch | None,
    ) -> None:
        self.requests = LiveRequests(config, self._send, verifier)
        self.load_error: RocmForgeError | None = None
        self.process: EngineProcess | None = None
        self._config = config
        self._verifier = verifier
        self._watch = watch
        self._phase = EngineState.LOADING  # of the process; draining is the server's business
        self._tasks: list[asyncio.Task[None]] = []
        self._settled = asyncio.Event()  # ready, or given up
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
        self._stats = EngineStats(totals=totals)
        self._restarts = 0
        # Loop time of the last report, or of the process's start; later by what is no silence.
        self._reported_at = 0.0

    # --- what the client asks for ---

    def start(self) -> None:
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
        if self.load_error is not None:
            raise self.load_error

    async def wait_given_up(self) -> RocmForgeError:
        """Waits until an engine that was ready will never be again; returns why."""
        await self._given_up.wait()
        assert self.load_error is not None
        return self.load_error

    def end_for_device(self, device: str, event: KernelEvent) -> None:
        """Replaces the process if it uses a device that was reset or lost.

        Args:
            device: its PCI address.
            event: one of `ENDED`.
        """
        runner = self.runner
        if self.process is None or runner is None or device not in runner.bus_ids:
            return
        self._fault = fault_of(event)
        self.process.kill(f"was killed: its device {device} {ENDED[event]}")

    async def stop(self) -> None:
        """Ends the process; whatever still runs gets an error. Idempotent."""
        was_ready = self._phase is EngineState.READY
        self._give_up(EngineDied("The engine was stopped."))
        self.requests.fail("The server is shutting down.")
        if self.process is not None:
            if not was_ready:
                self.process.kill("was stopped while loading")
            await self.process.shut_down(self._config.stop_grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def state(self) -> EngineState:
        """The phase, and whether what the engine computes is trusted."""
        is_distrusted = self._verifier is not None and self._verifier.distrusts
        if is_distrusted and self._phase is EngineState.READY:
            return EngineState.DISTRUSTED
        return self._phase

    @property
    def status(self) -> EngineStatus:
        """A snapshot."""
        is_loading = self._phase in (EngineState.LOADING, EngineState.RESTARTING)
        return EngineStatus(
            state=self.state,
            stage=self._progress.stage if is_loading else "",
            progress=self._progress.fraction if is_loading else 1.0,
            runner=self.runner,
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
    def runner(self) -> RunnerInfo | None:
        """The model and device of the process that was ready last."""
        return self._ready.runner if self._ready is not None else None

    @property
    def _whose(self) -> str:
        """The model, and its devices if they have addresses, for the head of a line of the log."""
        devices = () if self.runner is None else self.runner.bus_ids
        return f"{self._config.name} on {', '.join(devices)}" if devices else self._config.name

    def _send(self, command: Command) -> None:
        """Sends a command to the process, if there is one."""
        if self.process is not None:
            self.process.send(command)

    # --- what the process reports ---

    def _on_report(self, report: Report) -> None:
        match report:
            case StepReport():
                self._reported_at = asyncio.get_running_loop().time()
                self._stats = report.stats
                if self.requests.deliver(report.events):
                    self._failures = 0
                if self._verifier is not None:
                    self._verifier.advance(report.stats.totals.steps, self._send)
            case Progress():
                self._reported_at = asyncio.get_running_loop().time()
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
                if count := self.requests.resume():
                    again = "requests continued in the new engine process"
                    logger.warning("%s: %s: %d", self._whose, again, count)
            case LoadFailed():
                self._failure = rebuild_error(report)
                self._fault = self._failure.fault
            case Fatal():
                self._failure = EngineDied(report.message)
                self._fault = report.fault
                self._begin_restart()
                ended = [e for e in report.events if not self.requests.can_resume(e.request_id)]
                if self.requests.deliver(ended):
                    self._failures = 0

    # --- its lives ---

    async def _supervise(self) -> None:
        """Starts the process, and again whenever it dies. Only the first load fails for good."""
        config = self._config
        while True:
            error = await self._live_once()
            self.requests.fail(error.message, keep_resumable=True)
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
        if self._watch is not None and self.runner is not None:
            devices = self.runner.bus_ids
            await asyncio.to_thread(self._watch.look_soon, _WITNESS_S)
            since = time.time() - (now - self._news_at) - _WITNESSED_S
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
        self.requests.fail(final.message)
        logger.error("%s: %s", self._whose, final.message)
        self._note_error(final.message, self._fault)
        self._give_up(final, EngineState.FAILED)

    async def _live_once(self) -> RocmForgeError:
        """Runs one process to its end; says why it ended."""
        self._failure = None
        self._fault = Fault.CRASH
        self._reported_at = asyncio.get_running_loop().time()
        self._progress = Progress(stage="starting", fraction=0.0)
        try:
            self.process = await EngineProcess.spawn(self._start_message(), self._on_report)
        except OSError as error:
            return EngineDied(f"The engine process could not be started: {error}.")
        await self.process.disconnected()
        self._begin_restart()
        self._ended_at = asyncio.get_running_loop().time()
        verdict = await self.process.wait(self._config.stop_grace_s)
        self.process = None
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
        options, runner = self._config.options, self.runner
        if options.least_context is None or runner is None:
            return options
        context = min(runner.max_context, options.max_context)
        return replace(options, max_context=context, least_context=None)

    def _note_error(self, message: str, fault: Fault) -> None:
        self._last_error = message
        self._last_fault = fault
        self._last_error_at = time.time()

    @property
    def _news_at(self) -> float:
        """The loop time of the last report, or since when the process has had anything to do."""
        return max(self._reported_at, self.requests.busy_since)

    def _silence_s(self) -> float:
        """Returns the seconds since there was news of loading, or of the engine's requests."""
        is_idle = self._phase is EngineState.READY and not self.requests
        has_ended = self._phase in (EngineState.STOPPED, EngineState.FAILED)
        if self.process is None or is_idle or has_ended:
            return 0.0
        # Not asked of the loop, whose clock is the same: worker threads read the status too.
        return time.monotonic() - self._news_at

    def _give_up(self, error: RocmForgeError, phase: EngineState = EngineState.STOPPED) -> None:
        self._phase = phase
        self.load_error = self.load_error or error
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
            pause_s = min(pause_s, left_s + _SOON_S) if left_s > 0 else pause_s
            wakes_at = loop.time() + pause_s
            await asyncio.sleep(pause_s)
            now = loop.time()
            # While this process was stopped, as in a container that is paused, no news was missed.
            self._reported_at = min(self._news_at + (now - wakes_at), now)
            silence_s, limit_s = self._silence_s(), self._silence_limit_s()
            is_loading = self._phase is not EngineState.READY
            if silence_s > limit_s and self.process is not None:
                where = f" while loading ({self._progress.stage})" if is_loading else ""
                self._fault = Fault.HANG
                self.process.kill(f"was killed: it gave no news for {silence_s:.1f} s{where}")
                self._killed_at = self._killed_at or now
            if self._killed_at is not None and now - self._killed_at > config.stop_grace_s:
                self._give_up_on_wedged()
            self.requests.close_stalled(config.client_stall_s)

    def _silence_limit_s(self) -> float:
        """Returns the seconds of silence after which the process is taken for stuck."""
        is_ready = self._phase is EngineState.READY
        return self._config.step_timeout_s if is_ready else self._config.load_timeout_s

    def _give_up_on_wedged(self) -> None:
        """Gives up on a killed process that does not end: the kernel waits for the device."""
        if self._is_wedged or self.process is None:
            return
        message = (
            f"The engine process {self.process.pid} gave no news and does not end, though it was "
            "killed: its device or driver hangs. See dmesg; the machine may have to be restarted."
        )
        logger.error("%s: %s", self._whose, message)
        self._is_wedged = True
        self._note_error(message, Fault.HANG)
        self._begin_restart()
        self.requests.fail(message)
