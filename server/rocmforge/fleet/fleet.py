"""All models of a server: names, loading on request, making room, unloading.

Loads take turns: what fits on a device is known only once the one before has taken its share. A
model that is in use is never unloaded for the sake of another; whoever needs its place waits until
it is idle, as long as the request may take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rocmforge.errors import (
    ConfigurationError,
    DeadlineExceeded,
    Draining,
    InvalidParameter,
    ModelNotFound,
    ModelUnavailable,
    NotReady,
    OutOfMemory,
    QueueFull,
    RocmForgeError,
)
from rocmforge.fleet.entry import LOADING_RETRY_S, Engine, FleetEntry, ModelState
from rocmforge.fleet.model import ServedModel
from rocmforge.sensors.kernel_log import KernelEvent
from rocmforge.sensors.watch import DeviceWatch

logger = logging.getLogger(__name__)

RETRY_LOAD_S: Final = 5.0
"""So long after a failed attempt, requests are refused without another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The operator's settings of all models together."""

    max_loaded: int | None = None  # models in memory at once
    load_timeout_s: float = 600.0  # that a request waits for its model
    drain_timeout_s: float = 30.0  # that running requests get when a model is unloaded


class Fleet:
    """The models of a server. One event loop only.

    Args:
        models: at least one; the first is the one that a server with one model has.
        settings: limits.
        watch: looks after the devices of loaded models; it is stopped with the fleet.

    Raises:
        ConfigurationError: two models have the same name.
    """

    def __init__(
        self,
        models: Iterable[ServedModel],
        settings: FleetSettings | None = None,
        watch: DeviceWatch | None = None,
    ) -> None:
        self.models = tuple(models)
        self.watch = watch or DeviceWatch()
        self._settings = settings or FleetSettings()
        self._by_name: dict[str, ServedModel] = {}
        for model in self.models:
            for name in model.names:
                if name in self._by_name:
                    raise ConfigurationError(
                        f"Two models are called {name!r}: give one another name, such as with "
                        "--model NAME=FILE."
                    )
                self._by_name[name] = model
            model.entry.on_unused = partial(self._now_unused, model.entry)
        self._entries = [model.entry for model in self.models]
        self._turn = asyncio.Lock()  # whoever holds it may load; fair
        self._news = asyncio.Event()  # some model has become idle, or is gone
        self._timers: dict[FleetEntry, asyncio.TimerHandle] = {}
        self._is_closing = False

    # --- names ---

    @property
    def names(self) -> tuple[str, ...]:
        """All names a request may use."""
        return tuple(self._by_name)

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names that lists and messages show."""
        return tuple(name for model in self.models for name in model.shown_names)

    def find(self, name: str | None) -> ServedModel:
        """Finds the model of that name; None = the only one there is.

        Raises:
            ModelNotFound: there is no such model.
            InvalidParameter: no name, but a choice.
        """
        if name is None:
            if len(self.models) > 1:
                raise InvalidParameter(
                    f"Name a model, one of: {', '.join(self.shown_names)}.", param="model"
                )
            return self.models[0]
        model = self._by_name.get(name)
        if model is None:
            raise ModelNotFound(name, self.shown_names)
        return model

    # --- use ---

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken, and the models of the start have been loaded and serve."""
        return not self._is_closing and not any(map(_holds_up, self._entries))

    def held_up_by(self) -> ServedModel:
        """Returns the model that best says why the server is not ready; the first if it is."""
        return next((m for m in self.models if _holds_up(m.entry)), self.models[0])

    async def acquire(self, entry: FleetEntry, timeout_s: float | None = None) -> None:
        """Enters an entry, after loading its model if need be. `entry.leave` must follow.

        Args:
            entry: of one of the models.
            timeout_s: how long the request may take; None = as long as the operator lets it.

        Raises:
            NotReady, ModelUnavailable, QueueFull, Draining, DeadlineExceeded: not now.
        """
        if entry.is_up:
            self._enter(entry)
            return
        self._check_may_wait(entry)
        limit_s = self._settings.load_timeout_s
        self._begin_load(entry)
        try:
            async with asyncio.timeout(min(limit_s, math.inf if timeout_s is None else timeout_s)):
                await entry.wait()
        except TimeoutError:
            if timeout_s is not None and timeout_s <= limit_s:
                raise DeadlineExceeded(
                    f"{entry.name} was not loaded before the request's deadline.",
                    retry_after_s=LOADING_RETRY_S,
                ) from None
            raise ModelUnavailable(
                entry.name, f"{limit_s:g} s were not enough", retry_after_s=LOADING_RETRY_S
            ) from None
        finally:
            self._forget_unwanted_load(entry)

    def _enter(self, entry: FleetEntry) -> None:
        self._stop_timer(entry)
        entry.enter()

    def _check_may_wait(self, entry: FleetEntry) -> None:
        if self._is_closing:
            raise _shutting_down()
        if entry.is_new:
            raise NotReady("The model is still being loaded.", retry_after_s=LOADING_RETRY_S)
        if entry.state is ModelState.FAILED and _now() - entry.failed_at < RETRY_LOAD_S:
            raise entry.unavailable()
        if entry.num_waiting >= entry.policy.max_waiting:
            raise QueueFull(
                f"{entry.num_waiting} requests wait for {entry.name} to be loaded; "
                "try again later.",
                retry_after_s=LOADING_RETRY_S,
            )

    # --- loading ---

    async def load_first(self, entry: FleetEntry) -> None:
        """Loads a model at the server's start; requests for it are refused until then.

        Raises:
            RocmForgeError: it cannot be loaded.
        """
        self._begin_load(entry)
        if entry.loading is not None:
            await asyncio.wait((entry.loading,))
        entry.is_new = False
        if entry.failure is not None:
            raise entry.failure

    def _begin_load(self, entry: FleetEntry) -> None:
        """Begins one attempt for all who wait; what is being unloaded is loaded after that."""
        if entry.loading is None and entry.unloading is None and not self._is_closing:
            entry.loading = asyncio.create_task(self._load(entry), name=f"load {entry.name}")

    async def _load(self, entry: FleetEntry) -> None:
        began = _now()
        try:
            async with self._turn:
                await self._make_room(entry)
                await self._start_engine(entry)
        except RocmForgeError as error:
            if not entry.is_new:  # else `load_first` raises it
                logger.error("%s could not be loaded: %s", entry.name, error.message)
            entry.counts["load_failed"] += 1
            entry.failure, entry.failed_at, entry.loading = error, _now(), None
            entry.refuse_waiters(entry.unavailable)
        except asyncio.CancelledError:
            entry.loading = None
            if entry.num_waiting:  # they came after it was decided that nobody wants it
                self._begin_load(entry)
            raise
        else:
            logger.info("%s was loaded in %.1f s", entry.name, _now() - began)
            entry.counts["load"] += 1
            entry.failure = entry.loading = None
            entry.last_used = _now()
            entry.admit_waiters()
            if not entry.users:
                self._now_unused(entry)
            if entry.engine is not None:
                tending = self._tend(entry, entry.engine)
                entry.tending = asyncio.create_task(tending, name=f"tend {entry.name}")
        finally:
            self._follow_devices()
            self._news.set()

    async def _tend(self, entry: FleetEntry, engine: Engine) -> None:
        """Takes a model for failed once its engine is given up; a later request tries again."""
        error = await engine.wait_given_up()
        entry.tending = None  # this task, which closing would cancel
        if entry.engine is engine and entry.unloading is None and not self._is_closing:
            self._stop_timer(entry)
            entry.failure, entry.failed_at = error, _now()
            await entry.close()
            self._follow_devices()
            self._news.set()

    def _follow_devices(self) -> None:
        """Has the devices of loaded models looked after, and no other: looking may wake one."""
        if not self._is_closing:
            loop = asyncio.get_running_loop()
            self.watch.on_end = lambda device, event: _soon(
                loop, self._replace_engines, device, event
            )
            runners = [entry.status.runner for entry in self._entries]
            used = (bus_id for runner in runners if runner is not None for bus_id in runner.bus_ids)
            self.watch.follow(frozenset(used))

    def _replace_engines(self, device: str, event: KernelEvent) -> None:
        """Replaces the engine processes that use a device which was reset or lost."""
        for entry in self._entries:
            if entry.engine is not None:
                entry.engine.end_for_device(device, event)

    async def _start_engine(self, entry: FleetEntry) -> None:
        """Starts an engine, if need be several times: memory may have to be freed first."""
        while True:
            engine = entry.open()
            try:
                await engine.start()
                await engine.wait_ready()
                entry.is_too_large = False
                return
            except OutOfMemory as error:
                await _finish(entry.close())
                neighbours = self._neighbours(entry)
                entry.is_too_large = entry.is_too_large or not neighbours
                if entry.is_new or entry.is_too_large:
                    raise
                logger.warning("%s does not fit next to others: %s", entry.name, error.message)
                while len(self._neighbours(entry)) == len(neighbours):
                    await self._evict_one(neighbours, "memory")
            except BaseException:
                await _finish(entry.close())
                raise

    async def _make_room(self, entry: FleetEntry) -> None:
        limit = self._settings.max_loaded
        while limit is not None:
            loaded = [s for s in self._entries if s.engine is not None and s is not entry]
            if len(loaded) < limit:
                return
            others = self._evictable(entry)
            if not others:
                raise ModelUnavailable(
                    entry.name,
                    f"no more than {limit} may be loaded, and those that are, are pinned",
                    retry_after_s=LOADING_RETRY_S,
                )
            await self._evict_one(others, "room")

    def _evictable(self, entry: FleetEntry) -> list[FleetEntry]:
        return [
            s
            for s in self._entries
            if s is not entry and s.engine is not None and not s.policy.pinned
        ]

    def _neighbours(self, entry: FleetEntry) -> list[FleetEntry]:
        return [s for s in self._evictable(entry) if s.policy.shares_device(entry.policy)]

    async def _evict_one(self, entries: list[FleetEntry], reason: str) -> None:
        """Unloads the least recently used one that is idle; waits for a change if none is."""
        idle = [entry for entry in entries if entry.is_idle]
        if idle:
            victim = min(idle, key=lambda entry: entry.last_used)
            await self._take_away(victim, reason)
        else:
            self._news.clear()
            await self._news.wait()

    def _forget_unwanted_load(self, entry: FleetEntry) -> None:
        """Forgets a load that nobody waits for any more: nothing is unloaded for it."""
        if entry.loading is None or entry.engine is not None or entry.is_new or entry.num_waiting:
            return
        _cancel_once(entry.loading)

    # --- unloading ---

    async def unload(self, entry: FleetEntry) -> None:
        """Unloads a model, or stops loading it. Running requests get the time that they get.

        Raises:
            Draining: the server is shutting down, which unloads them all.
        """
        if entry.loading is not None:
            loading = entry.loading
            entry.refuse_waiters(
                lambda: NotReady(
                    f"{entry.name} was unloaded while it was loading.",
                    retry_after_s=LOADING_RETRY_S,
                )
            )
            _cancel_once(loading)
            await asyncio.wait((loading,))
        if entry.is_up or entry.unloading is not None:
            await self._take_away(entry, "request")
        if entry.loading is None:  # else somebody has come since who wants it
            entry.failure, entry.is_too_large = None, False

    async def _take_away(self, entry: FleetEntry, reason: str) -> None:
        """Unloads, to the end even if whoever asked for it does not wait any more."""
        if entry.unloading is None:
            if self._is_closing:
                raise _shutting_down()  # `stop` waits for no task that begins after it
            entry.unloading = self._unloading(entry, reason)
        await asyncio.wait((entry.unloading,))

    def _unloading(self, entry: FleetEntry, reason: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._unload(entry, reason), name=f"unload {entry.name}")

    async def _unload(self, entry: FleetEntry, reason: str) -> None:
        self._stop_timer(entry)
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await entry.unused.wait()
        except TimeoutError:
            logger.warning("requests of %s still ran and end with an error", entry.name)
        await entry.close()
        self._follow_devices()
        entry.unloading = None
        entry.counts[f"unload_{reason}"] += 1
        logger.info("%s was unloaded (%s)", entry.name, reason)
        if entry.num_waiting:
            self._begin_load(entry)
        self._news.set()

    def _now_unused(self, entry: FleetEntry) -> None:
        self._news.set()
        limit_s = entry.policy.idle_unload_s
        if limit_s is None or entry.policy.pinned or not entry.is_idle or self._is_closing:
            return
        self._stop_timer(entry)
        loop = asyncio.get_running_loop()
        self._timers[entry] = loop.call_later(limit_s, self._idle_too_long, entry)

    def _idle_too_long(self, entry: FleetEntry) -> None:
        self._stop_timer(entry)
        if entry.is_idle:
            entry.unloading = self._unloading(entry, "idle")

    def _stop_timer(self, entry: FleetEntry) -> None:
        timer = self._timers.pop(entry, None)
        if timer is not None:
            timer.cancel()

    # --- the end ---

    async def drain(self, timeout_s: float) -> bool:
        """Takes nothing new and waits for what is running; False if that took too long."""
        self._begin_closing()
        engines = [entry.engine for entry in self._entries if entry.engine is not None]
        done = await asyncio.gather(*(engine.drain(timeout_s) for engine in engines))
        return all(done)

    async def stop(self) -> None:
        """Ends all engines; whatever still runs gets an error. Idempotent."""
        self._begin_closing()
        transitions = [t for s in self._entries for t in (s.loading, s.unloading) if t is not None]
        engines = [
            entry.engine.stop()
            for entry in self._entries
            if entry.engine is not None and entry.loading is None
        ]
        tending = [entry.tending for entry in self._entries if entry.tending is not None]
        for task in tending:
            task.cancel()
        self.watch.stop()
        await asyncio.gather(*engines, *transitions, *tending, return_exceptions=True)

    def _begin_closing(self) -> None:
        self._is_closing = True
        for entry in self._entries:
            self._stop_timer(entry)
            entry.refuse_waiters(_shutting_down)
            if entry.loading is not None:
                _cancel_once(entry.loading)


def _holds_up(entry: FleetEntry) -> bool:
    """Returns whether a model of the start does not serve, and would not on request."""
    if not entry.policy.at_start:
        return False
    if entry.is_new or entry.state in (ModelState.RESTARTING, ModelState.FAILED):
        return True
    return entry.is_up and entry.state is not ModelState.READY


def _shutting_down() -> Draining:
    return Draining("The server is shutting down.", retry_after_s=LOADING_RETRY_S)


def _cancel_once(task: asyncio.Task[None]) -> None:
    """Cancels a task, once: a second time would cut off what it does to end in order."""
    if not task.cancelling():
        task.cancel()


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Does the work to its end, also if the caller is cancelled."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def _soon(
    loop: asyncio.AbstractEventLoop,
    act: Callable[[str, KernelEvent], None],
    device: str,
    event: KernelEvent,
) -> None:
    """Has something done in the loop, from another thread; nothing if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(act, device, event)


def _now() -> float:
    return asyncio.get_running_loop().time()
