"""A ring of pinned buffers between the files of a model and the device.

Threads read pieces of the files into its places; the thread that owns the ring takes them in order
and starts the copy of each. Little passes between them, as every microsecond of Python counts: a
piece of 8 MiB is copied in 160 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import DeviceBuffer, Memory, spec

Bytes = npt.NDArray[np.uint8]
READERS: Final = 10  # each reads 6 GB/s from the page cache, where copies reach 52
_COPIED: Final = 2  # pieces whose copy may be running while the next one is started
RING: Final = READERS + _COPIED + 1


@dataclass(slots=True, eq=False)
class StagingBuffer:
    """One place of the ring: pinned memory, a device buffer, and what happened to them."""

    host: Bytes
    host_address: int
    device: DeviceBuffer
    arrived: int  # event: the copy is done
    is_free: int  # event: both may be written again
    # None where the place has been read to, or why it cannot be.
    filled: SimpleQueue[BaseException | None] = field(default_factory=SimpleQueue)


@dataclass(frozen=True, slots=True)
class StagingPiece:
    """Bytes that travel in one copy: who reads them, and what becomes of them on the device."""

    read: Callable[[Bytes], None]
    nbytes: int
    finish: Callable[[StagingBuffer], None]


class StagingRing:
    """The places and their readers.

    Args:
        driver: Of the device.
        stage_bytes: Of each place; no piece is larger.
    """

    def __init__(self, driver: Driver, stage_bytes: int) -> None:
        self._driver = driver
        self._pool = ThreadPoolExecutor(READERS, "rocmforge-load")
        self._memory = Memory(driver)
        self._stages: list[StagingBuffer] = []
        self._is_stopped = False
        try:
            self._make_stages(stage_bytes)
        except BaseException:
            self.close()
            raise

    def read(self, pieces: Sequence[StagingPiece]) -> Generator[StagingBuffer]:
        """Yields a place for each piece, in order, with the piece in it.

        The caller must have recorded `is_free` of it before it asks for the next.

        Raises:
            BaseException: What a piece raised.
        """
        places: SimpleQueue[int | None] = SimpleQueue()  # numbers of pieces that there is room for
        for number in range(min(RING, len(pieces))):
            places.put(number)
        readers = [self._pool.submit(self._fill, pieces, places) for _ in range(READERS)]
        try:
            for number in range(len(pieces)):
                copied = number - _COPIED
                if 0 <= copied < len(pieces) - RING:
                    self._driver.synchronize_event(self._stages[copied % RING].is_free)
                    places.put(copied + RING)
                stage = self._stages[number % RING]
                if (failure := stage.filled.get()) is not None:
                    raise failure
                yield stage
        finally:
            self._is_stopped = True
            for _ in readers:
                places.put(None)
            for reader in readers:
                reader.result()

    def close(self) -> None:
        """Gives everything back; no copy may be running."""
        self._pool.shutdown()
        for stage in self._stages:
            self._driver.destroy_event(stage.arrived)
            self._driver.destroy_event(stage.is_free)
        self._stages.clear()
        for buffer in self._memory.release():
            buffer.free()

    def _make_stages(self, stage_bytes: int) -> None:
        driver, name = self._driver, "loading weights"
        host = self._memory.huge_pages(RING * stage_bytes, name, self._pool)
        for start in range(0, RING * stage_bytes, stage_bytes):
            stage = StagingBuffer(
                host.bytes[start : start + stage_bytes],
                host.address + start,
                self._memory.device(spec((stage_bytes,), "u1"), name),
                driver.create_event(timed=False),
                driver.create_event(timed=False),
            )
            self._stages.append(stage)

    def _fill(self, pieces: Sequence[StagingPiece], places: SimpleQueue[int | None]) -> None:
        """Reads pieces as places become free for them, until there are no more."""
        while (number := places.get()) is not None and not self._is_stopped:
            piece, stage = pieces[number], self._stages[number % RING]
            try:
                piece.read(stage.host[: piece.nbytes])
            except BaseException as failure:  # raised where the piece is waited for
                stage.filled.put(failure)
            else:
                stage.filled.put(None)
