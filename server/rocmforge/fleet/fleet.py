"""All models of a server: names, loading on request, making room, unloading.

Loads take turns: what fits on a device is known only once the one before has taken its share. A
model that is in use is never unloaded for the sake of another; whoever needs its place waits until
it is idle, as long as the request may take.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterable
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
from rocmforge.fleet.model import ServedModel
from rocmforge.fleet.slot import LOADING_RETRY_S, ModelSlot, ModelState

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

    Raises:
        ConfigurationError: two models have the same name.
    """

    def __init__(
        self, models: Iterable[ServedModel], settings: FleetSettings | None = None
    ) -> None:
        self.models = tuple(models)
        self._settings = settings or FleetSettings()
        self._by_name: dict[str, ServedModel] = {}
        for model in self.models:
            for name in model.names:
                if name in self._by_name:
                    raise ConfigurationError(f"Two models are called {name!r}: give other names.")
                self._by_name[name] = model
            model.slot.on_unused = partial(self._now_unused, model.slot)
        self._slots = [model.slot for model in self.models]
        self._turn = asyncio.Lock()  # whoever holds it may load; fair
        self._news = asyncio.Event()  # some model has become idle, or is gone
        self._timers: dict[ModelSlot, asyncio.TimerHandle] = {}
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
        return not self._is_closing and not any(map(_holds_up, self._slots))

    def held_up_by(self) -> ServedModel:
        """Returns the model that best says why the server is not ready; the first if it is."""
        return next((m for m in self.models if _holds_up(m.slot)), self.models[0])

    async def acquire(self, slot: ModelSlot, timeout_s: float | None = None) -> None:
        """Enters a slot, after loading its model if need be. `slot.leave` must follow.

        Args:
            slot: of one of the models.
            timeout_s: how long the request may take; None = as long as the operator lets it.

        Raises:
            NotReady, ModelUnavailable, QueueFull, Draining, DeadlineExceeded: not now.
        """
        if slot.is_up:
            self._enter(slot)
            return
        self._check_may_wait(slot)
        limit_s = self._settings.load_timeout_s
        self._begin_load(slot)
        try:
            async with asyncio.timeout(min(limit_s, math.inf if timeout_s is None else timeout_s)):
                await slot.wait()
        except TimeoutError:
            if timeout_s is not None and timeout_s <= limit_s:
                raise DeadlineExceeded(
                    f"{slot.name} was not loaded before the request's deadline.",
                    retry_after_s=LOADING_RETRY_S,
                ) from None
            raise ModelUnavailable(
                slot.name, f"{limit_s:g} s were not enough", retry_after_s=LOADING_RETRY_S
            ) from None
        finally:
            self._forget_unwanted_load(slot)

    def _enter(self, slot: ModelSlot) -> None:
        self._stop_timer(slot)
        slot.enter()

    def _check_may_wait(self, slot: ModelSlot) -> None:
        if self._is_closing:
            raise _shutting_down()
        if slot.is_new:
            raise NotReady("The model is still being loaded.", retry_after_s=LOADING_RETRY_S)
        if slot.state is ModelState.FAILED and _now() - slot.failed_at < RETRY_LOAD_S:
            raise slot.unavailable()
        if slot.num_waiting >= slot.policy.max_waiting:
            raise QueueFull(
                f"{slot.num_waiting} requests wait for {slot.name} to be loaded; try again later.",
                retry_after_s=LOADING_RETRY_S,
            )

    # --- loading ---

    async def load_first(self, slot: ModelSlot) -> None:
        """Loads a model at the server's start; requests for it are refused until then.

        Raises:
            RocmForgeError: it cannot be loaded.
        """
        self._begin_load(slot)
        if slot.loading is not None:
            await asyncio.wait((slot.loading,))
        slot.is_new = False
        if slot.failure is not None:
            raise slot.failure

    def _begin_load(self, slot: ModelSlot) -> None:
        """Begins one attempt for all who wait; what is being unloaded is loaded after that."""
        if slot.loading is None and slot.unloading is None and not self._is_closing:
            slot.loading = asyncio.create_task(self._load(slot), name=f"load {slot.name}")

    async def _load(self, slot: ModelSlot) -> None:
        began = _now()
        try:
            async with self._turn:
                await self._make_room(slot)
                await self._start_engine(slot)
        except RocmForgeError as error:
            if not slot.is_new:  # else `load_first` raises it
                logger.error("%s could not be loaded: %s", slot.name, error.message)
            slot.counts["load_failed"] += 1
            slot.failure, slot.failed_at, slot.loading = error, _now(), None
            slot.refuse_waiters(slot.unavailable)
        except asyncio.CancelledError:
            slot.loading = None
            if slot.num_waiting:  # they came after it was decided that nobody wants it
                self._begin_load(slot)
            raise
        else:
            logger.info("%s was loaded in %.1f s", slot.name, _now() - began)
            slot.counts["load"] += 1
            slot.failure = slot.loading = None
            slot.last_used = _now()
            slot.admit_waiters()
            if not slot.users:
                self._now_unused(slot)
        finally:
            self._news.set()

    async def _start_engine(self, slot: ModelSlot) -> None:
        """Starts an engine, if need be several times: memory may have to be freed first."""
        while True:
            engine = slot.open()
            try:
                await engine.start()
                await engine.wait_ready()
                slot.is_too_large = False
                return
            except OutOfMemory as error:
                await _finish(slot.close())
                neighbours = self._neighbours(slot)
                slot.is_too_large = slot.is_too_large or not neighbours
                if slot.is_new or slot.is_too_large:
                    raise
                logger.warning("%s does not fit next to others: %s", slot.name, error.message)
                while len(self._neighbours(slot)) == len(neighbours):
                    await self._evict_one(neighbours, "memory")
            except BaseException:
                await _finish(slot.close())
                raise

    async def _make_room(self, slot: ModelSlot) -> None:
        limit = self._settings.max_loaded
        while limit is not None:
            loaded = [s for s in self._slots if s.engine is not None and s is not slot]
            if len(loaded) < limit:
                return
            others = self._evictable(slot)
            if not others:
                raise ModelUnavailable(
                    slot.name,
                    f"no more than {limit} may be loaded, and those that are, are pinned",
                    retry_after_s=LOADING_RETRY_S,
                )
            await self._evict_one(others, "room")

    def _evictable(self, slot: ModelSlot) -> list[ModelSlot]:
        return [
            s for s in self._slots if s is not slot and s.engine is not None and not s.policy.pinned
        ]

    def _neighbours(self, slot: ModelSlot) -> list[ModelSlot]:
        return [s for s in self._evictable(slot) if s.policy.shares_device(slot.policy)]

    async def _evict_one(self, slots: list[ModelSlot], reason: str) -> None:
        """Unloads the least recently used one that is idle; waits for a change if none is."""
        idle = [slot for slot in slots if slot.is_idle]
        if idle:
            victim = min(idle, key=lambda slot: slot.last_used)
            await self._take_away(victim, reason)
        else:
            self._news.clear()
            await self._news.wait()

    def _forget_unwanted_load(self, slot: ModelSlot) -> None:
        """Forgets a load that nobody waits for any more: nothing is unloaded for it."""
        if slot.loading is None or slot.engine is not None or slot.is_new or slot.num_waiting:
            return
        _cancel_once(slot.loading)

    # --- unloading ---

    async def unload(self, slot: ModelSlot) -> None:
        """Unloads a model, or stops loading it. Running requests get the time that they get."""
        if slot.loading is not None:
            loading = slot.loading
            slot.refuse_waiters(
                lambda: NotReady(
                    f"{slot.name} was unloaded while it was loading.", retry_after_s=LOADING_RETRY_S
                )
            )
            _cancel_once(loading)
            await asyncio.wait((loading,))
        if slot.is_up or slot.unloading is not None:
            await self._take_away(slot, "request")
        if slot.loading is None:  # else somebody has come since who wants it
            slot.failure, slot.is_too_large = None, False

    async def _take_away(self, slot: ModelSlot, reason: str) -> None:
        """Unloads, to the end even if whoever asked for it does not wait any more."""
        if slot.unloading is None:
            slot.unloading = asyncio.create_task(
                self._unload(slot, reason), name=f"unload {slot.name}"
            )
        await asyncio.wait((slot.unloading,))

    async def _unload(self, slot: ModelSlot, reason: str) -> None:
        self._stop_timer(slot)
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await slot.unused.wait()
        except TimeoutError:
            logger.warning("requests of %s still ran and end with an error", slot.name)
        await slot.close()
        slot.unloading = None
        slot.counts[f"unload_{reason}"] += 1
        logger.info("%s was unloaded (%s)", slot.name, reason)
        if slot.num_waiting:
            self._begin_load(slot)
        self._news.set()

    def _now_unused(self, slot: ModelSlot) -> None:
        self._news.set()
        limit_s = slot.policy.idle_unload_s
        if limit_s is None or slot.policy.pinned or not slot.is_idle or self._is_closing:
            return
        self._stop_timer(slot)
        loop = asyncio.get_running_loop()
        self._timers[slot] = loop.call_later(limit_s, self._idle_too_long, slot)

    def _idle_too_long(self, slot: ModelSlot) -> None:
        self._stop_timer(slot)
        if slot.is_idle:
            slot.unloading = asyncio.create_task(
                self._unload(slot, "idle"), name=f"unload {slot.name}"
            )

    def _stop_timer(self, slot: ModelSlot) -> None:
        timer = self._timers.pop(slot, None)
        if timer is not None:
            timer.cancel()

    # --- the end ---

    async def drain(self, timeout_s: float) -> bool:
        """Takes nothing new and waits for what is running; False if that took too long."""
        self._begin_closing()
        engines = [slot.engine for slot in self._slots if slot.engine is not None]
        done = await asyncio.gather(*(engine.drain(timeout_s) for engine in engines))
        return all(done)

    async def stop(self) -> None:
        """Ends all engines; whatever still runs gets an error. Idempotent."""
        self._begin_closing()
        transitions = [t for s in self._slots for t in (s.loading, s.unloading) if t is not None]
        engines = [
            slot.engine.stop()
            for slot in self._slots
            if slot.engine is not None and slot.loading is None
        ]
        await asyncio.gather(*engines, *transitions, return_exceptions=True)

    def _begin_closing(self) -> None:
        self._is_closing = True
        for slot in self._slots:
            self._stop_timer(slot)
            slot.refuse_waiters(_shutting_down)
            if slot.loading is not None:
                _cancel_once(slot.loading)


def _holds_up(slot: ModelSlot) -> bool:
    """Returns whether a model of the start does not serve, and would not on request."""
    if not slot.policy.at_start:
        return False
    if slot.is_new or slot.state in (ModelState.RESTARTING, ModelState.FAILED):
        return True
    return slot.is_up and slot.state is not ModelState.READY


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


def _now() -> float:
    return asyncio.get_running_loop().time()
