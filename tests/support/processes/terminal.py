"""A program in a real pseudo-terminal, driven by keys and read as a screen would show it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

PATIENCE_S: Final = 60.0

UP: Final = "\x1b[A"
LEFT: Final = "\x1b[D"
HOME: Final = "\x1b[H"
ALT_ENTER: Final = "\x1b\r"
CTRL_C: Final = "\x03"
CTRL_D: Final = "\x04"
PROMPT: Final = "\N{BLACK RIGHT-POINTING TRIANGLE}"
"""Stands in what is shown where the program begins to read keys: it lets pastes be marked then."""

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")


def pasted(text: str) -> str:
    """A text as terminals send it that mark what is pasted."""
    return f"\x1b[200~{text}\x1b[201~"


def heed_interrupts() -> None:
    """Lets a child end by ^C although the tests may run where it is ignored, as behind `&`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program in a pseudo-terminal, and what it has shown. Use it as a context manager.

    Args:
        arguments: of the command line.
        environment: variables besides those of the tests.
        program: what takes the arguments; `rocmforge` unless given.

    Attributes:
        raw: all bytes that the terminal has got.
        shown: what has not been waited for yet, without escape sequences.
    """

    def __init__(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str],
        program: Sequence[str] = (sys.executable, "-m", "rocmforge"),
    ) -> None:
        self._master, slave = pty.openpty()
        # Makes the pseudo-terminal the one whose ^C interrupts the program.
        command = ["setsid", "--ctty", *program, *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", **environment},
            preexec_fn=heed_interrupts,
        )
        os.close(slave)
        self.raw = b""
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, keys: str) -> None:
        """Sends keys."""
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> str:
        """Returns what is shown up to this text, which is taken off."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            self._read(0.1)
        before, _, self.shown = self.shown.partition(text)
        return before

    def ends_well(self) -> None:
        """Waits for the end of the program; fails, with what was shown, if its status is not 0."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read(0.05)
        self._read(0.0)
        assert self.process.returncode == 0, self.shown

    def _read(self, timeout_s: float) -> None:
        if not select.select([self._master], [], [], timeout_s)[0]:
            return
        try:
            self.raw += os.read(self._master, 4096)
        except OSError:  # the program has closed its side
            time.sleep(timeout_s)
            return
        seen = len(self._shown_of(self._taken))
        self.shown += self._shown_of(self.raw)[seen:]
        self._taken = self.raw

    _taken = b""

    @staticmethod
    def _shown_of(raw: bytes) -> str:
        text = raw.decode(errors="ignore").replace("\x1b[?2004h", PROMPT)
        return _ESCAPES.sub("", text)
