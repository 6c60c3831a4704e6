"""Steps in flight: their host buffers and events, and the first error, which stays.

Two steps may be in flight. All work is in one stream, so a step begins when the one before it has
ended, and may read what that one left on the device. The host waits for one event only, when a
result is collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from rocmforge.errors import EngineError
from rocmforge_hip.device.driver import HipError
from rocmforge_hip.device.memory import PinnedBuffer
from rocmforge_hip.device.opening import Device, release

PIPELINE_DEPTH: Final = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lane:
    """Host buffers of one of the steps in flight, and the event that it has begun."""

    inputs: PinnedBuffer
    outputs: PinnedBuffer
    started: int


class Timing(NamedTuple):
    """The time that a step took."""

    device_ns: int
    launches: int  # since the step before was collected
    gap_ns: int  # that the device was idle before it


class Pipeline(Generic[T]):
    """The steps in flight on a device, in order; `T` is what the runner must know of one.

    Args:
        device: Owned from now on.
        input_bytes: Of the largest step.
        output_bytes: Of its results.
    """

    def __init__(self, device: Device, input_bytes: int, output_bytes: int) -> None:
        self._device = device
        self._lanes = [
            Lane(
                device.memory.pinned(input_bytes, "inputs of a step"),
                device.memory.pinned(output_bytes, "results of a step"),
                device.driver.create_event(timed=True),
            )
            for _ in range(PIPELINE_DEPTH)
        ]
        # One more than lanes: when a step is collected, the one before has not lost its own.
        self._ends = [device.driver.create_event(timed=True) for _ in range(PIPELINE_DEPTH + 1)]
        self._ended_last: int | None = None
        self._submitted = 0
        self._launches = device.driver.launches
        self._in_flight: deque[tuple[Lane, int, T]] = deque()
        self._failure: EngineError | None = None

    def submit(self, start: Callable[[Lane, int], T]) -> None:
        """Starts a step.

        Args:
            start: Is given the step's lane and the event to record when it has ended.

        Raises:
            EngineError: The device failed, now or before.
        """
        assert len(self._in_flight) < PIPELINE_DEPTH, "too many steps in flight"
        lane = self._lanes[self._submitted % len(self._lanes)]
        ended = self._ends[self._submitted % len(self._ends)]
        self._submitted += 1
        with self.guarded():
            self._in_flight.append((lane, ended, start(lane, ended)))

    @property
    def oldest(self) -> T:
        """The result of `start` for the step that is collected next."""
        assert self._in_flight, "nothing was submitted"
        return self._in_flight[0][2]

    def collect(self) -> tuple[Lane, T, Timing]:
        """Waits for the oldest step: its lane, and what `start` returned.

        Raises:
            EngineError: The device failed, now or before.
        """
        assert self._in_flight, "nothing was submitted"
        driver = self._device.driver
        with self.guarded():
            lane, ended, done = self._in_flight.popleft()
            driver.synchronize_event(ended)
            before, self._ended_last = self._ended_last, ended
            launches, self._launches = driver.launches - self._launches, driver.launches
            timing = Timing(
                device_ns=driver.elapsed_ns(lane.started, ended),
                launches=launches,
                gap_ns=0 if before is None else driver.elapsed_ns(before, lane.started),
            )
        return lane, done, timing

    def forget_last(self) -> None:
        """Takes the next step for the first one, before which the device was not idle."""
        self._ended_last = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Guards calls of the device: an error is kept, and raised again by every later call."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except EngineError as error:
            self._failure = error
            raise

    def close(self, free: Callable[[], None] = lambda: None) -> None:
        """Waits for the device and gives everything back, beginning with what `free` does.

        Raises:
            HipError: The device failed, for the first time.
        """
        device = self._device
        try:
            device.driver.synchronize_stream(device.stream)
            free()
            for lane in self._lanes:
                device.driver.destroy_event(lane.started)
            for event in self._ends:
                device.driver.destroy_event(event)
            release(device)
        except HipError:
            # A device that has failed answers every call with its error; the process ends next,
            # which gives everything back.
            if self._failure is None:
                raise
