"""One life of the engine process, or of a verifier, seen from the server's event loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from rocmforge.engine.ipc.messages import Report, Shutdown
from rocmforge.engine.ipc.wire import FrameReader, encode
from rocmforge.errors import EngineError

logger = logging.getLogger(__name__)


_ENGINE: Final = "rocmforge.engine.process"


class EngineProcess(asyncio.Protocol):
    """A running process and the connection to it.

    Args:
        on_report: called for each message, in the event loop.
        kinds: the union of message types that may come.
    """

    def __init__(self, on_report: Callable[[Any], None], kinds: Any = Report) -> None:
        self._on_report = on_report
        self._reader: FrameReader[Any] = FrameReader(kinds)
        self._transport: asyncio.Transport | None = None
        self._process: Process | None = None
        self._disconnected = asyncio.Event()
        self._verdict: str | None = None

    @classmethod
    async def spawn(
        cls,
        start: msgspec.Struct,
        on_report: Callable[[Any], None],
        *,
        kinds: Any = Report,
        module: str = _ENGINE,
    ) -> EngineProcess:
        """Starts a process and tells it what to load.

        Args:
            start: the first message to it.
            on_report: called for each message, in the event loop.
            kinds: the union of message types that may come.
            module: what it runs; an engine by default.

        Raises:
            OSError: the system refuses.
        """
        self = cls(on_report, kinds)
        ours, theirs = socket.socketpair()
        with theirs:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_unix_connection(lambda: self, sock=ours)
            try:
                # A session of its own: the terminal's ^C is for the server only.
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    module,
                    "--fd",
                    str(theirs.fileno()),
                    stdin=DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                transport.abort()
                raise
        self.send(start)
        return self

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def send(self, command: msgspec.Struct) -> None:
        """Sends a command; one to a process that has gone is lost."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(command))

    def kill(self, verdict: str) -> None:
        """Ends the process at once; `verdict` becomes the reason that `wait` returns."""
        assert self._process is not None
        self._verdict = self._verdict or verdict
        if self._process.returncode is None:
            self._process.kill()

    async def disconnected(self) -> None:
        """Waits until nothing more can come."""
        await self._disconnected.wait()

    async def wait(self, grace_s: float) -> str:
        """Waits until connection and process have ended; says why, as in "it ...".

        A process that lives on for `grace_s` after the connection has ended is killed.
        """
        assert self._process is not None
        await self._disconnected.wait()
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self.kill("did not end")
        status = await self._process.wait()
        if self._verdict is not None:
            return self._verdict
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    async def shut_down(self, grace_s: float) -> None:
        """Asks the process to end, and ends it after `grace_s`.

        One that hangs in the driver outlives that: it is left behind.
        """
        self.send(Shutdown())
        try:
            async with asyncio.timeout(grace_s):
                await self.wait(grace_s)
            return
        except TimeoutError:
            self.kill("did not stop when asked to")
        try:
            async with asyncio.timeout(grace_s):
                await self.wait(grace_s)
        except TimeoutError:
            logger.error("the engine process %d was killed and does not end: left behind", self.pid)

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        """Passes complete messages on."""
        try:
            for report in self._reader.feed(data):
                self._on_report(report)
        except EngineError as error:
            self.kill(error.message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Lets `wait` go on."""
        self._transport = None
        self._disconnected.set()
