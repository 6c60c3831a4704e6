"""One model's place in the server: the engine while it is loaded, who uses it, and who waits.

An entry changes state only by what `Fleet` does to it, and counts for itself what uses it.
Everything here belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from rocmforge.engine.ipc.params import GenerateRequest, TokenEvent
from rocmforge.engine.ipc.status import EngineState, EngineStats, EngineStatus
from rocmforge.engine.ipc.totals import Totals
from rocmforge.errors import ModelLoadError, ModelUnavailable, NotReady, RocmForgeError
from rocmforge.sensors.kernel_log import KernelEvent

LOADING_RETRY_S: Final = 5.0


class ModelState(StrEnum):
    """The stage of a model."""

    UNLOADED = "unloaded"
    LOADING = "loading"  # or waiting for its turn, or for room
    READY = "ready"
    RESTARTING = "restarting"  # its engine process died, and a new one loads it
    DRAINING = "draining"  # finishes what it has before it is unloaded
    FAILED = "failed"  # could not be loaded, or its engine kept dying; a later request tries again
    STOPPED = "stopped"  # the server ends
    DISTRUSTED = "distrusted"  # what it computes was found wrong: it must be loaded again


_STATES = {
    EngineState.LOADING: ModelState.LOADING,
    EngineState.READY: ModelState.READY,
    EngineState.RESTARTING: ModelState.RESTARTING,
    EngineState.FAILED: ModelState.FAILED,
    EngineState.DRAINING: ModelState.DRAINING,
    EngineState.STOPPED: ModelState.STOPPED,
    EngineState.DISTRUSTED: ModelState.DISTRUSTED,
}


class Handle(Protocol):
    """One sequence in the engine (`engine.client.GenerationHandle`)."""

    resumed: int
    """How many times it was handed to another engine process."""

    async def next(self) -> tuple[TokenEvent, ...]:
        """Waits for news; at least one event. The last event has a finish reason."""
        ...

    def close(self) -> None:
        """Ends the sequence if it still runs and frees what it holds. Idempotent."""
        ...


class Engine(Protocol):
    """The part of `engine.client.AsyncEngine` that the server uses. Loaded, used, stopped: once."""

    @property
    def status(self) -> EngineStatus:
        """A snapshot."""
        ...

    def submit(self, request: GenerateRequest) -> Handle:
        """Queues one sequence.

        Raises:
            CapacityError: the queue is full, or the engine is not ready or draining.
        """
        ...

    async def start(self) -> None:
        """Begins to load; returns at once."""
        ...

    async def wait_ready(self) -> None:
        """Waits until requests are taken; raises why they never will be."""
        ...

    async def wait_given_up(self) -> RocmForgeError:
        """Waits until it was ready and will never be again; returns why."""
        ...

    def end_for_device(self, device: str, event: KernelEvent) -> None:
        """Replaces the process if it uses a device that was reset or lost."""
        ...

    async def drain(self, timeout_s: float) -> bool:
        """Takes nothing new and waits for what is running; False if that took too long."""
        ...

    async def stop(self) -> None:
        """Ends it; whatever still runs gets an error. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPolicy:
    """The operator's decision about when a model is loaded."""

    at_start: bool = True  # or on the first request
    pinned: bool = False  # unloaded only manually
    idle_unload_s: float | None = None  # unloaded after so long without a request
    devices: frozenset[str] = frozenset()  # as the backend knows them; empty = its own choice
    max_waiting: int = 256  # requests that may wait while it is loaded

    def shares_device(self, other: ModelPolicy) -> bool:
        """Returns whether both may need memory of the same device."""
        return not self.devices or not other.devices or bool(self.devices & other.devices)


class FleetEntry:
    """The engine of one model, one after the other: each lives once.

    Args:
        name: what the model is called in logs.
        make_engine: makes a new engine that counts on from such totals.
        policy: when to load and unload it.

    Attributes:
        engine: None while the model is not in memory.
        loading, unloading: the transition under way, if any.
        tending: waits for the engine to be given up, while it is loaded.
        failure: why the last attempt to load it failed.
        failed_at: loop time of that.
        is_too_large: it did not fit with the others gone: nothing is unloaded for it again.
        users: those between `enter` and `leave`: requests, and generations that outlive theirs.
        last_used: loop time at which `users` last became 0.
        is_new: whether it still has to be loaded for the first time, at the server's start.
        counts: how often what happened, for metrics.
    """

    def __init__(
        self,
        name: str,
        make_engine: Callable[[Totals], Engine],
        policy: ModelPolicy | None = None,
    ) -> None:
        self.name = name
        self.policy = policy or ModelPolicy()
        self.make_engine = make_engine
        self.engine: Engine | None = None
        self.loading: asyncio.Task[None] | None = None
        self.unloading: asyncio.Task[None] | None = None
        self.tending: asyncio.Task[None] | None = None
        self.failure: RocmForgeError | None = None
        self.failed_at = 0.0
        self.is_too_large = False
        self.users = 0
        self.last_used = 0.0
        self.is_new = self.policy.at_start
        self.counts: Counter[str] = Counter()
        self.unused = asyncio.Event()
        self.unused.set()
        self.on_unused: Callable[[], None] = lambda: None
        self._waiters: list[asyncio.Future[RocmForgeError | None]] = []
        self._last_stats = EngineStats()
        self._last: EngineStatus | None = None  # of the engine before

    # --- state ---

    @property
    def state(self) -> ModelState:
        """Where it is in its life."""
        if self.unloading is not None:
            return ModelState.DRAINING
        if self.loading is not None:
            return ModelState.LOADING
        if self.engine is not None:
            return _STATES[self.engine.status.state]
        return ModelState.UNLOADED if self.failure is None else ModelState.FAILED

    @property
    def is_up(self) -> bool:
        """Whether requests go to the engine, which may refuse them, or else wait."""
        return self.engine is not None and self.loading is None and self.unloading is None

    @property
    def is_idle(self) -> bool:
        """Whether it is loaded and nobody would notice if it were not."""
        return self.is_up and not self.users

    @property
    def status(self) -> EngineStatus:
        """The engine's; while there is none, one that counts nothing but what has been."""
        if self.engine is not None:
            return self.engine.status
        is_loading, last = self.loading is not None, self._last
        return EngineStatus(
            state=EngineState.LOADING if is_loading else EngineState.STOPPED,
            stage="waiting for its turn" if is_loading else "",
            progress=0.0 if is_loading else 1.0,
            runner=None,
            is_fallback=False,
            fallback_reason="",
            stats=self._last_stats,
            restarts=0 if last is None else last.restarts,
            last_error=None if self.failure is None else self.failure.message,
            last_error_at=None if self.failure is None or last is None else last.last_error_at,
            last_fault=None if self.failure is None or last is None else last.last_fault,
            faults={} if last is None else last.faults,
        )

    def open(self) -> Engine:
        """Makes a new engine, which is not started yet."""
        self.engine = self.make_engine(self._last_stats.totals)
        return self.engine

    async def close(self) -> None:
        """Stops the engine, if there is one, and forgets it."""
        engine = self.engine
        if engine is None:
            return
        if self.tending is not None:
            self.tending.cancel()
            self.tending = None
        await engine.stop()
        self._last = engine.status
        self._last_stats = self._last.stats.at_rest()
        self.engine = None

    # --- use ---

    def enter(self) -> Engine:
        """Counts one user more, who gets the engine; `leave` must follow.

        Raises:
            NotReady: the model is not in memory.
        """
        if self.engine is None:
            raise NotReady(f"{self.name} is not loaded.", retry_after_s=LOADING_RETRY_S)
        self.users += 1
        self.unused.clear()
        return self.engine

    def leave(self) -> None:
        """Counts one user less."""
        self.users -= 1
        if not self.users:
            self.last_used = asyncio.get_running_loop().time()
            self.unused.set()
            self.on_unused()

    # --- waiting ---

    @property
    def num_waiting(self) -> int:
        """Requests that wait until it is loaded."""
        return len(self._waiters)

    async def wait(self) -> None:
        """Waits until it has been loaded, and has entered then.

        Raises:
            RocmForgeError: what `refuse_waiters` said.
        """
        waiter: asyncio.Future[RocmForgeError | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            refusal = await waiter
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.result() is None:  # let in, and gone before it noticed
                self.leave()
            raise
        if refusal is not None:
            raise refusal

    def admit_waiters(self) -> None:
        """Lets in everybody who waits: what has just been loaded is used before it may go."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                self.enter()
                waiter.set_result(None)

    def refuse_waiters(self, refusal: Callable[[], RocmForgeError]) -> None:
        """Sends away everybody who waits."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(refusal())

    def unavailable(self) -> ModelUnavailable:
        """Makes the error of requests after a failure; where the file lies is not told."""
        assert self.failure is not None
        reason = self.failure.message
        if isinstance(self.failure, ModelLoadError):
            reason = "its file cannot be used; the server's log says why"
        return ModelUnavailable(self.name, reason, retry_after_s=LOADING_RETRY_S)
