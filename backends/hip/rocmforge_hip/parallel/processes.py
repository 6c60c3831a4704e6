"""The worker processes as rank 0 sees them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from threading import Event, Thread
from typing import Any, Final

from rocmforge.errors import BackendError, Fault
from rocmforge_hip.parallel.messages import Failed, Order, Stage

WORKER: Final = "rocmforge_hip.parallel.worker"
_GRACE_S: Final = 10.0
_ABORT_S: Final = 1.0  # that aborting a group may take before what it waits for is given back


class RankFailed(BackendError):
    """Another rank reported an error, or its process ended."""

    def __init__(self, rank: int, device: int, detail: str, fault: Fault) -> None:
        super().__init__(f"Rank {rank}, which runs on device {device},", detail, fault)
        self.rank = rank
        self.device = device


class WorkerProcess:
    """One worker and the connection to it."""

    def __init__(self, rank: int, device: int) -> None:
        self._rank = rank
        self._device = device
        ours, theirs = Pipe()
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", WORKER, "--fd", str(fd)],
                stdin=subprocess.DEVNULL,
                pass_fds=(fd,),
            )
        self.connection: Connection[Any, Any] = ours

    def send(self, data: bytes) -> None:
        """Sends a pickled message.

        Raises:
            OSError: The process is gone.
        """
        self.connection.send_bytes(data)

    def receive(self) -> Stage | RankFailed:
        """Waits for the next message; why there will be none is one too."""
        answer: Stage | Failed | None = None
        with suppress(EOFError, OSError):
            answer = self.connection.recv()
        if isinstance(answer, Stage):
            return answer
        if answer is not None:
            return RankFailed(self._rank, self._device, answer.message, answer.fault)
        detail = f"its process ended with status {self.end(_GRACE_S)}"
        return RankFailed(self._rank, self._device, detail, Fault.CRASH)

    def failure(self) -> RankFailed:
        """Waits until the worker says why it is gone; returns that."""
        while True:
            answer = self.receive()
            if isinstance(answer, RankFailed):
                return answer

    def end(self, grace_s: float) -> int:
        """Waits for the end of the process, and makes it end after a while; its exit status."""
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()


class Workers:
    """All ranks but the first."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._workers = [WorkerProcess(rank, device) for rank, device in enumerate(devices, 1)]
        self._watcher: Thread | None = None
        self._all_loaded = Event()  # or one has failed
        self._watch_over = Event()  # one has failed, which `failure` tells, or all have ended
        self._has_ended = False
        self.failure: RankFailed | None = None
        """Of the first worker that failed, once they are watched."""

    def send(self, message: object) -> None:
        """Sends a message to all.

        Raises:
            RankFailed: One is gone.
        """
        data = _pickled(message)
        for worker in self._workers:
            self._send(worker, data)

    def send_each(self, message: Callable[[int], object]) -> None:
        """Sends each a message made for its rank, 1 and up.

        Raises:
            RankFailed: One is gone.
        """
        for rank, worker in enumerate(self._workers, 1):
            self._send(worker, _pickled(message(rank)))

    def _send(self, worker: WorkerProcess, data: bytes) -> None:
        try:
            worker.send(data)
        except OSError:
            if self._watcher is not None:
                self._watch_over.wait()  # it notices too, and may then be busy for long
            raise self.failure or worker.failure() from None

    def wait_opened(self) -> None:
        """Waits until all have opened their device.

        Raises:
            RankFailed: One cannot.
        """
        for worker in self._workers:
            answer = worker.receive()
            if isinstance(answer, RankFailed):
                raise answer

    def wait_loaded(self) -> None:
        """Waits until all that are watched have loaded their part.

        Raises:
            RankFailed: One cannot.
        """
        self._all_loaded.wait()
        if self.failure is not None:
            raise self.failure

    def watch(self, on_failure: Callable[[], None]) -> None:
        """Starts a thread that notices a worker that fails: it sets `failure`, then calls this."""
        self._watcher = Thread(
            target=self._watch, args=(on_failure,), name="rocmforge-ranks", daemon=True
        )
        self._watcher.start()

    def _watch(self, on_failure: Callable[[], None]) -> None:
        workers = {worker.connection: worker for worker in self._workers}
        loaded = 0
        while True:
            ready = connection.wait(list(workers))
            if self._has_ended:
                self._watch_over.set()
                return
            for each in ready:
                assert isinstance(each, Connection)
                answer = workers[each].receive()
                if isinstance(answer, RankFailed):
                    self.failure = answer
                    self._all_loaded.set()
                    self._watch_over.set()
                    on_failure()
                    return
                loaded += 1
            if loaded == len(workers):
                self._all_loaded.set()

    def tell_to_close(self) -> None:
        """Lets them close what they have.

        Raises:
            RankFailed: One is gone.
        """
        self._has_ended = True
        self.send(Order.CLOSE)

    def wait(self) -> None:
        """Waits for the end of those that were told to close."""
        for worker in self._workers:
            worker.end(_GRACE_S)
        self._finish()

    def kill(self) -> None:
        """Ends all, whatever they are doing."""
        self._has_ended = True
        for worker in self._workers:
            worker.kill()
        self._finish()

    def _finish(self) -> None:
        if self._watcher is not None:
            self._watcher.join(_ABORT_S)
        for worker in self._workers:
            worker.connection.close()


def _pickled(message: object) -> bytes:
    # A copy, as an error that is kept has frames that keep this, too: what is collected in one
    # circle with a buffer that is lent to a view makes Python 3.13 write an error to stderr.
    return bytes(ForkingPickler.dumps(message))
