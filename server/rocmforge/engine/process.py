"""The engine process: `python -m rocmforge.engine.process --fd N`.

Started by `engine/client/engine_process.py` with one end of a socket pair. It owns the device, and
lives exactly as long as the other end is open.
"""

from __future__ import annotations

import gc
import logging
import select
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from rocmforge.backend import owned_process
from rocmforge.engine.cache.tiers.opening import open_tiers
from rocmforge.engine.cache.tiers.tiers import CacheTiers
from rocmforge.engine.constraint.grammar import Grammars
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.messages import (
    Command,
    Progress,
    Ready,
    Report,
    Shutdown,
    Start,
    describe_error,
)
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.ipc.wire import FrameReader, encode
from rocmforge.engine.loading import Loaded, load
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.waiting.images import WaitingImages
from rocmforge.errors import BackendError, OutOfMemory, RocmForgeError
from rocmforge.logs import set_up_logging

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 18
_TEND_S = 0.002  # between looks at copies that go on while there is nothing to compute
_LINGER_S = 5.0  # for the server to read the last report, and to close its end then
_KEEP_S = 8.0  # for what is still to be saved at the end; less than `EngineConfig.stop_grace_s`


class Channel:
    """The engine's end of the socket pair.

    A `ConnectionError` from any method means that the server is gone.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader: FrameReader[Command] = FrameReader(Command)
        self._behind_first: list[Command] = []

    def receive_first(self) -> Command:
        """Waits for the first command. Others may come with it: clients leave at any time."""
        first, *self._behind_first = self.receive(wait=True)
        return first

    def receive(self, *, wait: bool) -> list[Command]:
        """Returns all commands that have arrived; with `wait`, at least one."""
        commands, self._behind_first = self._behind_first, []
        while True:
            flags = 0 if wait and not commands else socket.MSG_DONTWAIT
            try:
                data = self._sock.recv(_READ_BYTES, flags)
            except BlockingIOError:
                return commands
            if not data:
                raise ConnectionResetError("the server closed the connection")
            commands.extend(self._reader.feed(data))

    def has_news(self, wait_s: float) -> bool:
        """Waits for a command, or the end of the connection, but no longer than that."""
        if self._behind_first:
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(1000 * wait_s))

    def send(self, report: Report) -> None:
        """Sends one message."""
        self._sock.sendall(encode(report))

    def end(self, linger_s: float = _LINGER_S) -> None:
        """Says that nothing more comes, and waits until the server has closed its end.

        If this end were closed first, a server that happened to send something would get an error,
        and lose with the connection what it had not read: why the engine ends.

        Args:
            linger_s: How long to wait for the server.
        """
        self._sock.settimeout(linger_s)
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            while self._sock.recv(_READ_BYTES):
                pass


def announce(
    loaded: Loaded, core: EngineCore, channel: Channel, tiers: CacheTiers | None = None
) -> None:
    """Says what is being served."""
    choice, info = loaded.choice, loaded.info
    notes = info.notes if tiers is None else (*info.notes, tiers.note)
    channel.send(
        Ready(
            runner=replace(info, max_context=core.max_context, notes=notes),
            is_fallback=choice.is_fallback,
            fallback_reason=choice.reason if choice.is_fallback else "",
        )
    )


def serve(core: EngineCore, channel: Channel) -> None:
    """Runs steps while there is work, and sleeps on the socket when there is none."""
    while True:
        has_tended = False
        while not core.has_work and core.tend():
            has_tended = True
            if channel.has_news(_TEND_S):
                break
        if has_tended:
            channel.send(core.report())
        commands = channel.receive(wait=not core.has_work)
        if any(isinstance(command, Shutdown) for command in commands):
            return
        channel.send(core.step(commands))


def run(start: Start, channel: Channel) -> int:
    """Loads and serves until told to stop. Returns the exit status."""
    try:
        limits = SchedulerLimits(
            max_sequences=start.options.max_sequences,
            max_batched_tokens=start.options.max_batched_tokens,
            max_waiting=start.max_waiting,
            max_score_rows=start.max_score_rows,
            prefix_cache=start.prefix_cache,
            max_stall_ns=start.max_stall_ns,
        )
        loaded = load(
            start, lambda stage, share: channel.send(Progress(stage=stage, fraction=share))
        )
    except ConnectionError:
        raise
    except Exception as error:
        channel.send(describe_error(_typed(error, "load")))
        return 1
    runner, grammars = loaded.runner, None
    if start.vocabulary is not None and runner.info.masks_tokens:
        grammars = Grammars(start.vocabulary, runner.info.vocab_size)
    try:
        limits = replace(limits, whole_rows=loaded.whole_rows)
        tiers = open_tiers(runner, start.tiers, loaded.fingerprint, start.totals)
    except Exception as error:
        loaded.close()
        channel.send(describe_error(_typed(error, "load")))
        return 1
    core = EngineCore(
        runner,
        limits,
        time.monotonic_ns,
        start.totals,
        grammars,
        loaded.draft,
        tiers,
        _images(loaded, start.totals),
    )
    gc.collect()
    gc.freeze()  # what loading made is here to stay: the collector need not look at it again
    try:
        announce(loaded, core, channel, tiers)
        serve(core, channel)
        if start.tiers.folder is not None:
            core.keep_blocks(_KEEP_S)
    except ConnectionError:
        raise
    except Exception as error:  # after any error the runner can only be closed
        typed = _typed(error, "step")
        channel.send(core.fail(typed.message, typed.fault))
        return 1
    finally:
        if tiers is not None:
            tiers.close()
        loaded.close()
    return 0


def _images(loaded: Loaded, totals: Totals) -> WaitingImages | None:
    """Returns what makes rows of images, if the model takes some."""
    if loaded.tower is None or loaded.images is None:
        return None
    return WaitingImages(loaded.tower, loaded.images, totals)


def _typed(error: Exception, call: str) -> RocmForgeError:
    """Returns an error raised on purpose as it is; wraps and logs any other."""
    if isinstance(error, RocmForgeError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory(
            f"The {call} needs more memory than this machine gives the process ({error}). Lower "
            "max_context, max_sequences or kv_blocks, or take a smaller model."
        )
    logger.error("%s failed", call, exc_info=error)
    return BackendError(call, f"{type(error).__name__}: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the process; returns its exit status."""
    descriptor = owned_process.begin("rocmforge.engine.process", arguments)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        start = channel.receive_first()
        assert isinstance(start, Start), "the first command says what to load"
        set_up_logging(start.log_level, start.log_format)
        status = run(start, channel)
        if status:  # the last report says why
            channel.end()
        return status
    except ConnectionError:
        return 1


if __name__ == "__main__":
    sys.exit(main())
