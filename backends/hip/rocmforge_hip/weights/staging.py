"""A ring of pinned buffers between the files of a model and the device.

Threads read pieces of the files into its places; the thread that owns the ring takes each as it is
there and starts its copy. Little passes between them, as every microsecond of Python counts: a
piece of 8 MiB is copied in 160 of them, and who waits for the interpreter while others hold it
wakes late. So few threads are better than many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import DeviceArray, Memory, spec

Bytes = npt.NDArray[np.uint8]
READERS: Final = 8  # each reads 6 to 8 GB/s from the page cache, where copies reach 54
_COPIED: Final = 2  # pieces whose copy may be running while the next one is started
RING: Final = READERS + _COPIED + 1
_NAME: Final = "loading weights"


@dataclass(frozen=True, slots=True, eq=False)
class StagingBuffer:
    """One place of the ring: pinned memory, as much of the device, and what happened to them."""

    host: Bytes
    host_address: int
    device: DeviceArray
    arrived: int  # event: the copy is done
    is_free: int  # event: both may be written again


@dataclass(frozen=True, slots=True)
class StagingPiece:
    """Bytes that travel in one copy: who reads them, and what becomes of them on the device."""

    read: Callable[[Bytes], None]
    nbytes: int
    finish: Callable[[StagingBuffer], None]


@dataclass(frozen=True, slots=True)
class _Filled:
    number: int
    piece: StagingPiece
    stage: StagingBuffer


class StagingRing:
    """The places and their readers, which make the places as soon as there is a ring.

    Args:
        driver: Of the device.
        stage_bytes: Of each place; no piece is larger.
    """

    def __init__(self, driver: Driver, stage_bytes: int) -> None:
        self._driver = driver
        self._memory = Memory(driver)
        self._device = self._memory.device(spec((RING, stage_bytes), "u1"), _NAME).array
        self._events: list[int] = []
        self._free: SimpleQueue[StagingBuffer | None] = SimpleQueue()
        self._filled: SimpleQueue[_Filled | BaseException] = SimpleQueue()
        self._pool = ThreadPoolExecutor(READERS, "rocmforge-load", driver.enter_thread)
        for number in range(RING):
            self._start(self._make_place, number)

    def read(
        self, pieces: Sequence[StagingPiece], *, in_order: bool
    ) -> Generator[tuple[StagingPiece, StagingBuffer]]:
        """Yields each piece once it has been read, with its place.

        The caller must have recorded `is_free` of it before it asks for the next.

        Args:
            pieces: What to read.
            in_order: Whether they come in their order, or as they are there.

        Raises:
            BaseException: What a piece raised, or why there is no place.
        """
        waiting = enumerate(pieces)  # each is taken by one thread: the interpreter sees to that
        for _ in range(READERS):
            self._start(self._fill, waiting)
        copied: deque[StagingBuffer] = deque()
        early: dict[int, _Filled] = {}
        for number in range(len(pieces)):
            while (filled := early.pop(number, None)) is None:
                found = self._filled.get()
                if isinstance(found, BaseException):
                    raise found
                early[found.number if in_order else number] = found
            yield filled.piece, filled.stage
            copied.append(filled.stage)
            while len(copied) > _COPIED or (
                copied and self._driver.has_happened(copied[0].is_free)
            ):
                self._driver.synchronize_event(copied[0].is_free)
                self._free.put(copied.popleft())

    def stop(self) -> None:
        """Ends the readers."""
        for _ in range(READERS):
            self._free.put(None)
        self._pool.shutdown()

    def close(self) -> None:
        """Gives everything back after `stop`; no copy may be running."""
        while self._events:
            self._driver.destroy_event(self._events.pop())
        for buffer in self._memory.release():
            buffer.free()

    def _start(self, work: Callable[..., None], argument: object) -> None:
        """Has a thread work; a failure is raised where pieces are waited for."""

        def note(done: Future[None]) -> None:
            if (failure := done.exception()) is not None:
                self._filled.put(failure)

        self._pool.submit(work, argument).add_done_callback(note)

    def _make_place(self, number: int) -> None:
        device = self._device.rows(number, number + 1)
        host = self._memory.huge_pages(device.nbytes, _NAME)
        arrived, is_free = (self._driver.create_event(timed=False) for _ in range(2))
        self._events += (arrived, is_free)
        self._free.put(StagingBuffer(host.bytes, host.address, device, arrived, is_free))

    def _fill(self, waiting: Iterator[tuple[int, StagingPiece]]) -> None:
        """Reads pieces until there are no more.

        Whoever takes a piece has a place for it: else those of later pieces could take up all.
        """
        while (stage := self._free.get()) is not None:
            number, piece = next(waiting, (0, None))
            if piece is None:
                break
            piece.read(stage.host[: piece.nbytes])
            self._filled.put(_Filled(number, piece, stage))
