"""The begin of a process that lives exactly as long as the other end of a socket pair is open."""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
from collections.abc import Sequence
from threading import Thread
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def begin(program: str, arguments: Sequence[str] | None) -> int:
    """Makes sure that this process ends when its owner wants it to, or is gone, and not before.

    A terminal's ^C and a service manager's SIGTERM go to the whole group, but are for the owner,
    which ends this process. A thread sees the socket hang up, which also covers an owner that only
    lost interest; the kernel's signal covers a main thread that is stuck in native code and holds
    the interpreter's lock.

    Args:
        program: Its name, for messages.
        arguments: `--fd N`, one end of the socket pair; None = those of the command line.

    Returns:
        The descriptor N.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--fd", type=int, required=True, help="end of a socket pair")
    descriptor: int = parser.parse_args(arguments).fd
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)

    def wait_and_exit() -> None:
        poll.poll()
        os._exit(1)

    Thread(target=wait_and_exit, name="hangup", daemon=True).start()
    return descriptor
