"""A ring of pinned buffers between the files of a model and the device.

Pieces of the files are read into its places, beside what the thread does that owns the ring: it
takes them in order and starts the copy of each. Little passes between them, as every microsecond
of Python counts: a piece of 8 MiB is copied in 150 of them. So bytes that a file has are read by
threads of the C library, which never wait for the interpreter (`checkpoint/file_reads.py`), and
only those that are computed by threads of Python.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.file_reads import PARTS, THREADS, FileRead, start_threads
from rocmforge.checkpoint.locator import FilePart
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import Memory
from rocmforge_hip.weights.formats import ceil_div, round_up

Bytes = npt.NDArray[np.uint8]
_NAME: Final = "loading weights"
_COPIED: Final = 3  # pieces whose copy may be running while the next one is started
RING: Final = ceil_div(THREADS, PARTS) + _COPIED + 2
_PAGE: Final = 4096  # bytes


@dataclass(slots=True, eq=False)
class StagingBuffer:
    """One place of the ring: pinned memory, and what happened to it."""

    host: Bytes
    host_address: int
    file: FileRead
    arrived: int  # event: the copy is done
    computed: Future[None] | None = None  # what fills the place if that is no file
    is_pinned: bool = False  # copies take no longer than they must

    def wait(self) -> None:
        """Waits until the place has been filled; raises why it cannot be."""
        if self.computed is None:
            self.file.wait()
        else:
            self.computed.result()


@dataclass(frozen=True, slots=True)
class StagingPiece:
    """Bytes that travel in one copy: where from, and what becomes of them on the device."""

    source: FilePart | Callable[[Bytes], None]  # a function is called by any thread
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
        self._stage_bytes = stage_bytes
        self._pool = ThreadPoolExecutor(THREADS, "rocmforge-load")
        start_threads()
        self._memory = Memory(driver)
        step = round_up(stage_bytes, _PAGE)
        self._host = self._memory.huge_pages(RING * step, _NAME)
        self._stages = [
            StagingBuffer(
                self._host.bytes[start : start + stage_bytes],
                self._host.address + start,
                FileRead(),
                driver.create_event(timed=False),
            )
            for start in range(0, RING * step, step)
        ]
        self._pieces: Iterator[StagingPiece] = iter(())
        self._reading: deque[tuple[StagingPiece, StagingBuffer]] = deque()
        self._copying: deque[StagingBuffer] = deque()

    def start(self, pieces: Iterator[StagingPiece]) -> None:
        """Starts to read the first pieces.

        Args:
            pieces: All of them; the others are taken from it when there is room for them.
        """
        self._pieces = pieces
        for piece, stage in zip(islice(pieces, RING), self._stages, strict=False):
            self._fill(stage, piece)

    def read(self) -> Generator[tuple[StagingPiece, StagingBuffer]]:
        """Yields each piece, in order, with the place that it is in.

        A place is pinned when its first piece is there, which has touched its pages: the first copy
        begins while the others are yet to be pinned. The caller must have recorded `arrived` of a
        place before it asks for the next.

        Raises:
            BaseException: What a piece raised.
        """
        while self._reading:
            if len(self._copying) == _COPIED:
                stage = self._copying.popleft()
                if (piece := next(self._pieces, None)) is not None:
                    self._driver.synchronize_event(stage.arrived)
                    self._fill(stage, piece)
            piece, stage = self._reading.popleft()
            stage.wait()
            if not stage.is_pinned:
                self._host.pin(stage.host_address - self._host.address, self._stage_bytes)
                stage.is_pinned = True
            yield piece, stage
            self._copying.append(stage)

    def close(self) -> None:
        """Ends all readers and gives everything back; no copy may be running."""
        self._pool.shutdown(cancel_futures=True)
        for stage in self._stages:
            stage.file.close()
            self._driver.destroy_event(stage.arrived)
        self._stages.clear()
        for buffer in self._memory.release():
            buffer.free()

    def _fill(self, stage: StagingBuffer, piece: StagingPiece) -> None:
        """Has a piece read into a place that is free."""
        stage.computed = None
        if isinstance(piece.source, FilePart):
            stage.file.start(piece.source, stage.host_address, piece.nbytes)
        else:
            stage.computed = self._pool.submit(piece.source, stage.host[: piece.nbytes])
        self._reading.append((piece, stage))
