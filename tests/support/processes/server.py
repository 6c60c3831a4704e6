"""Starts a server process for a test, waits until it is ready, and stops it again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import httpx

ROOT = Path(__file__).parents[3]
START_S = 120.0  # for what takes a few seconds on an idle machine
PATIENCE_S = 60.0
POLL_S = 0.05


def reserved_port() -> socket.socket:
    """Returns a socket that keeps a port for a server until it is closed.

    Nobody listens on it. The kernel gives its port to nobody who asks for any, and lets those bind
    it who ask for it by number and with SO_REUSEADDR, as servers do. A port that was only free a
    moment ago may be another's before the server is there.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def port_of(holder: socket.socket) -> int:
    """The port that a socket is bound to."""
    port: int = holder.getsockname()[1]
    return port


class LiveServer:
    """A server process on a loopback port. Use it as a context manager.

    Args:
        command: what to run, after the Python interpreter; `{port}` stands for the port.
        log: where its output goes.
        wait_for: the path that must answer 200 before the server counts as started.
        start_s: how long that may take.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        wait_for: str = "/ready",
        start_s: float = START_S,
    ) -> None:
        self._reserved = reserved_port()
        self.port = port_of(self._reserved)
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, *(part.format(port=self.port) for part in command)]
        self._log = log
        self._wait_for = wait_for
        self._start_s = start_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._reserved:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)
            try:
                self._wait()
            except BaseException:
                self.kill()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.stop()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None, "the server has not been started"
        return self._process

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str) -> httpx.Response:
        """Asks it once, as cheaply as what asks in a loop should.

        httpx would read the certificates of the world first, 22 ms of processor time each time.
        """
        return httpx.get(self.url + path, verify=False, timeout=PATIENCE_S)

    def is_ready(self) -> bool:
        """Whether it answers as it should."""
        return self.get(self._wait_for).status_code == 200

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """Sends SIGTERM and returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"The server did not stop within {timeout_s} s:\n{self.log}"
            ) from None

    def kill(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + self._start_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if self.is_ready():
                    return
            except httpx.TransportError:
                pass
            time.sleep(POLL_S)
        raise AssertionError(f"The server did not become ready:\n{self.log}")
