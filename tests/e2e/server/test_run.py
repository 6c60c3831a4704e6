"""`rocmforge run` in a real terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.speaking import write_speaking

PATIENCE_S = 60.0
PROMPT = "> "


class Terminal:
    """A program in a pseudo-terminal, and what it has shown."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "rocmforge", *arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.shown = ""

    def type(self, text: str) -> None:
        """Sends keys."""
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> str:
        """Returns what is shown up to this text, which is taken off."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._master], [], [], 0.1)[0]:
                self.shown += os.read(self._master, 4096).decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def close(self) -> None:
        """Ends the program."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A conversation with a tiny model, at its first prompt."""
    model = write_speaking(tmp_path, "llama")
    limits = ("--max-context", "512", "--max-sequences", "1", "--max-tokens", "4")
    terminal = Terminal("run", str(model), "--backend", "reference", *limits)
    try:
        terminal.wait_for(PROMPT)
        yield terminal
    finally:
        terminal.close()


def test_pasted_lines_are_one_message(terminal: Terminal) -> None:
    terminal.type("\x1b[200~/paste is a line\nof a pasted text\x1b[201~")
    terminal.wait_for("of a pasted text")
    terminal.type("\r")
    terminal.wait_for("/paste is not a command")
    terminal.wait_for(PROMPT)
    terminal.type("/help\r")  # answered next: no second line of the paste has become a question
    terminal.wait_for("/help\r\n")
    assert len(terminal.wait_for("/help shows this")) < 20  # nothing but the terminal's modes


def test_help_is_shown_and_the_conversation_goes_on(terminal: Terminal) -> None:
    terminal.type("/help\r")
    terminal.wait_for("/help shows this")
    terminal.wait_for(PROMPT)
    terminal.type("\x04")
    assert terminal.process.wait(PATIENCE_S) == 0


def test_an_interrupted_answer_ends_in_a_new_prompt(tmp_path: Path) -> None:
    model = write_speaking(tmp_path, "llama")
    terminal = Terminal("run", str(model), "--backend", "tests.support.fake_backend:create_slow")
    try:
        terminal.wait_for(PROMPT)
        terminal.type("tell me\r")
        terminal.wait_for("tell me")
        time.sleep(0.5)
        os.killpg(terminal.process.pid, signal.SIGINT)
        terminal.wait_for(PROMPT)
        assert terminal.process.poll() is None
    finally:
        terminal.close()
