"""A fleet of engines that only take time and memory, on a device that watches them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams, TokenEvent
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.ipc.status import EngineState, EngineStats, EngineStatus
from rocmforge.engine.ipc.totals import Totals
from rocmforge.errors import EngineDied, NotReady, OutOfMemory, RocmForgeError
from rocmforge.fleet.entry import FleetEntry, ModelPolicy
from rocmforge.fleet.fleet import Fleet, FleetSettings
from rocmforge.sensors.kernel_log import KernelEvent
from tests.api.fake_engine import RUNNER, make_model

LOAD_S = 10.0
REQUEST = GenerateRequest(
    prompt=token_prompt([1]), sampling=SamplingParams(max_tokens=1), eos_ids=(2,), arrival_ns=0
)


@dataclass
class Device:
    """What all engines of a test share, and what must never happen on it."""

    memory: int = 100
    load_s: float = LOAD_S
    errors: list[RocmForgeError] = field(default_factory=list)  # of the next loads
    alive: list[TimedEngine] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    most_alive: int = 0
    cut_off: int = 0  # sequences that an engine held when it was stopped

    def admit(self, engine: TimedEngine) -> None:
        assert engine.name not in [other.name for other in self.alive], "loaded twice"
        assert all(other.is_loaded for other in self.alive), "two load at once"
        self.alive.append(engine)
        self.loads.append(engine.name)
        self.most_alive = max(self.most_alive, len(self.alive))


class TimedHandle:
    """A sequence that runs until it is closed."""

    def __init__(self, engine: TimedEngine) -> None:
        self.resumed = 0
        self._engine = engine
        engine.sequences.add(self)

    async def next(self) -> tuple[TokenEvent, ...]:
        """Never comes."""
        await asyncio.Event().wait()
        return ()

    def close(self) -> None:
        """Ends it."""
        self._engine.sequences.discard(self)


class TimedEngine:
    """An engine that takes time to load and memory while it lives."""

    def __init__(self, name: str, size: int, device: Device, totals: Totals) -> None:
        self.name = name
        self.size = size
        self.device = device
        self.stats = one_more_step(totals)
        self.state = EngineState.LOADING
        self.sequences: set[TimedHandle] = set()
        self._stopped = asyncio.Event()

    @property
    def is_loaded(self) -> bool:
        return self.state is not EngineState.LOADING

    @property
    def status(self) -> EngineStatus:
        """A snapshot."""
        return EngineStatus(
            state=self.state,
            stage="weights" if self.state is EngineState.LOADING else "",
            progress=0.5 if self.state is EngineState.LOADING else 1.0,
            runner=RUNNER if self.is_loaded else None,
            is_fallback=False,
            fallback_reason="",
            stats=self.stats,
            restarts=0,
            last_error=None,
        )

    async def start(self) -> None:
        """Begins to load."""
        self.device.admit(self)

    async def wait_ready(self) -> None:
        """Takes its time; fails if there is no memory, or if a test says so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.device.load_s):
                await self._stopped.wait()
        if self._stopped.is_set():
            raise EngineDied("The engine was stopped.")
        if self.device.errors:
            raise self.device.errors.pop(0)
        if sum(engine.size for engine in self.device.alive) > self.device.memory:
            raise OutOfMemory(f"{self.name} does not fit.")
        self.state = EngineState.READY

    async def wait_given_up(self) -> RocmForgeError:
        """Nobody gives it up."""
        await asyncio.Event().wait()
        raise AssertionError

    def end_for_device(self, device: str, event: KernelEvent) -> None:
        """It has no device."""

    async def drain(self, timeout_s: float) -> bool:
        """Waits until nothing runs."""
        self.state = EngineState.DRAINING
        for _ in range(round(timeout_s)):
            if not self.sequences:
                return True
            await asyncio.sleep(1.0)
        return not self.sequences

    async def stop(self) -> None:
        """Ends; takes a moment."""
        self._stopped.set()
        self.device.cut_off += len(self.sequences)
        self.state = EngineState.STOPPED
        await asyncio.sleep(0.5)
        if self in self.device.alive:
            self.device.alive.remove(self)

    def submit(self, request: GenerateRequest) -> TimedHandle:
        """Starts a sequence."""
        if self.state is not EngineState.READY:
            raise NotReady(f"it is {self.state}", retry_after_s=1)
        return TimedHandle(self)


def one_more_step(totals: Totals) -> EngineStats:
    """One step more, so that a test sees what a new engine begins with."""
    return EngineStats(totals=Totals(steps=totals.steps + 1), running=3, blocks_used=2)


@dataclass
class World:
    """A fleet of models called a, b, c."""

    fleet: Fleet
    device: Device

    def entry(self, name: str) -> FleetEntry:
        return self.fleet.find(name).entry

    def states(self) -> str:
        """The first letters of all states, in order."""
        return "".join(model.entry.state[0] for model in self.fleet.models)

    async def use(self, name: str, hold_s: float, timeout_s: float | None = None) -> None:
        """A request: plans for a moment, and then keeps a sequence for so long."""
        entry = self.entry(name)
        await self.fleet.acquire(entry, timeout_s)
        try:
            await asyncio.sleep(0.01)
            engine = entry.enter()
        finally:
            entry.leave()
        try:
            handle = engine.submit(REQUEST)
            try:
                await asyncio.sleep(hold_s)
            finally:
                handle.close()
        finally:
            entry.leave()


LAZY = ModelPolicy(at_start=False)


def world(
    policies: Sequence[ModelPolicy] = (LAZY, LAZY, LAZY),
    *,
    sizes: Sequence[int] = (10, 10, 10),
    device: Device | None = None,
    max_loaded: int | None = None,
    load_timeout_s: float = 100.0,
) -> World:
    shared = device or Device()
    models = []
    for name, policy, size in zip("abc", policies, sizes, strict=False):

        def make(totals: Totals, name: str = name, size: int = size) -> TimedEngine:
            return TimedEngine(name, size, shared, totals)

        entry = FleetEntry(name, make, policy)
        models.append(make_model(name=name, aliases=(), entry=entry))
    settings = FleetSettings(
        max_loaded=max_loaded, load_timeout_s=load_timeout_s, drain_timeout_s=20.0
    )
    return World(Fleet(models, settings), shared)


async def settle(*tasks: asyncio.Task[None]) -> list[BaseException | None]:
    return list(await asyncio.gather(*tasks, return_exceptions=True))


def spawn(*uses: object) -> list[asyncio.Task[None]]:
    return [asyncio.ensure_future(use) for use in uses]  # type: ignore[call-overload]
