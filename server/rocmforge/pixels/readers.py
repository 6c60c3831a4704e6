"""Processes that read images, as the server sees them.

A hostile file may crash its process, or keep it busy: it costs the request that it came with. The
process is ended and another one takes its place.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from hashlib import blake2b
from threading import Lock, Timer
from typing import Final

from rocmforge.errors import InvalidParameter
from rocmforge.latest_used import LatestUsed
from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import ProcessedImage
from rocmforge.pixels.jobs import (
    ReadJob,
    ReadOutcome,
    WorkerLimits,
    decoder_of,
    receive,
    send,
)

MAX_KEPT_BYTES: Final = 256 * 1024 * 1024
"""Of the images that were read last: a conversation sends all its images again with each turn."""

_END_S: Final = 10.0
_PIPE_BYTES: Final = 1 << 20  # 13 MB of tiles come through it
_outcomes: Final = decoder_of(ReadOutcome)


class ImageReaders:
    """Processes, as many as threads call at once; those that wait are kept. Safe with threads.

    Args:
        limits: of one image.
        max_kept_bytes: of images that need not be read again.
    """

    def __init__(
        self, limits: WorkerLimits | None = None, max_kept_bytes: int = MAX_KEPT_BYTES
    ) -> None:
        self._limits = limits or WorkerLimits()
        self._lock = Lock()
        self._idle: list[_Worker] = []
        self._is_closed = False
        self._kept: LatestUsed[tuple[int, bytes, ProcessorConfig], ProcessedImage] = LatestUsed(
            max_kept_bytes
        )

    def read(self, data: bytes, config: ProcessorConfig, owner: int = 0) -> ProcessedImage:
        """Reads an image as a model's tower takes it.

        Args:
            data: a file.
            config: what the model does with it.
            owner: who sends it; none learns from the time it takes what another one has sent.

        Raises:
            InvalidParameter: it cannot be read. The message goes on after "the image".
        """
        key = (owner, blake2b(data, digest_size=16).digest(), config)
        image = self._kept.find(key)
        if image is None:
            image = self._read(ReadJob(data=data, config=config, limits=self._limits))
            self._kept.keep(key, image, sum(len(tile.patches) for tile in image.tiles))
        return image

    def close(self) -> None:
        """Ends the processes; those that are busy end with what they do."""
        with self._lock:
            self._is_closed = True
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.end()

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes that wait."""
        with self._lock:
            return tuple(worker.pid for worker in self._idle)

    def _read(self, job: ReadJob) -> ProcessedImage:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None or not worker.is_alive():
            worker = _Worker()
        try:
            outcome = worker.work(job)
        except BaseException:
            worker.end()
            raise
        with self._lock:
            keeps = not self._is_closed
            if keeps:
                self._idle.append(worker)
        if not keeps:
            worker.end()
        if outcome.image is None:
            raise InvalidParameter(outcome.problem)
        return outcome.image


class _Worker:
    """A process; one thread uses it at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rocmforge.pixels.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # the terminal's ^C is for the server only
            # No secrets; and no threads of NumPy, which would take address space.
            env={
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "OPENBLAS_NUM_THREADS": "1",
            },
        )
        self._is_late = False
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # a user may have too many large ones already
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        """Returns whether it can work; buries it if it has ended."""
        if self._process.poll() is None and not self._is_late:
            return True
        self.end()
        return False

    def work(self, job: ReadJob) -> ReadOutcome:
        """Does a job. Raises InvalidParameter if the process does not survive it, or hangs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        killer = Timer(job.limits.seconds, self._end_late)
        killer.daemon = True
        killer.start()
        outcome = None
        try:
            send(self._process.stdin.fileno(), job)
            outcome = receive(self._process.stdout.fileno(), _outcomes)
        except BrokenPipeError:
            pass  # it has ended
        finally:
            killer.cancel()
            killer.join()  # from here on it ends nobody
        if outcome is None:
            raise InvalidParameter(self._why_it_ended(job.limits.seconds))
        return outcome

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait(_END_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _end_late(self) -> None:
        self._is_late = True
        self._process.kill()

    def _why_it_ended(self, seconds: float) -> str:
        self._process.kill()  # one that writes nonsense
        status = self._process.wait(_END_S)
        if self._is_late or status == -signal.SIGXCPU:
            return f"takes more than {seconds:g} s to read"
        return "cannot be read: the process that read it ended"
