"""What is said while a model loads: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from rocmforge.commands.terminal import progress
from rocmforge.commands.terminal.progress import wait_for
from rocmforge.engine.ipc.status import EngineStatus
from rocmforge.logs import set_up_logging
from tests.api.fake_engine import FakeEngine

STAGES = ("starting", "reading weights", "reading weights", "warming up")


class Loading:
    """A model whose stages follow each other at each look."""

    def __init__(self) -> None:
        self._looks = 0
        self._done = asyncio.Event()

    async def load(self) -> None:
        """Ends behind the last stage."""
        await self._done.wait()

    def status(self) -> EngineStatus:
        """The next stage."""
        stage = STAGES[min(self._looks, len(STAGES) - 1)]
        self._looks += 1
        if self._looks > len(STAGES):
            self._done.set()
        return replace(FakeEngine().status, stage=stage, progress=self._looks / 8)


def load(console: Console, monkeypatch: pytest.MonkeyPatch, form: Any = "text") -> None:
    async def run() -> None:
        loading = Loading()
        await wait_for(loading.load(), loading.status, console, form)

    monkeypatch.setattr(progress, "REFRESH_S", 0.001)
    asyncio.run(run())


@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "JSON on a terminal"])
def test_where_there_is_no_bar_each_stage_is_a_line(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal)
    load(console, monkeypatch, "json" if is_terminal else "text")
    assert caplog.messages == [
        "loading: starting, 12%",
        "loading: reading weights, 25%",
        "loading: warming up, 50%",
    ]
    assert file.getvalue() == ""


def test_a_stage_that_takes_long_is_written_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    load(Console(file=io.StringIO(), force_terminal=False), monkeypatch)
    assert caplog.messages.count("loading: reading weights, 25%") == 1
    assert caplog.messages.count("loading: reading weights, 38%") == 1


class Screen(io.StringIO):
    """A terminal of one column of lines: carriage return, line feed and erasing."""

    def isatty(self) -> bool:
        """It is one."""
        return True

    def lines(self) -> list[str]:
        """What a person sees."""
        rows, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|.|\n", self.getvalue(), re.DOTALL):
            if part == "\r":
                column = 0
            elif part == "\n":
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            elif part == "\x1b[1A":
                row -= 1
            elif part == "\x1b[2K":
                rows[row] = ""
            elif part in ("\x1b[K", "\x1b[0K"):
                rows[row] = rows[row][:column]
            elif not part.startswith("\x1b"):
                rows[row] = rows[row][:column].ljust(column) + part + rows[row][column + 1 :]
                column += 1
        return [line.rstrip() for line in rows if line.strip()]


def test_a_line_of_the_log_and_the_bar_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    handlers: list[logging.Handler] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **given: handlers.extend(given["handlers"]))
    set_up_logging("info", "text")
    log = logging.getLogger("another.process")
    log.propagate = False
    monkeypatch.setattr(log, "handlers", handlers)
    original = Loading.status

    def status(loading: Loading) -> EngineStatus:
        log.warning("short")  # between two drawings of the bar
        return original(loading)

    monkeypatch.setattr(Loading, "status", status)
    load(Console(file=screen, force_terminal=True, width=80), monkeypatch)
    assert "reading weights" in screen.getvalue()
    shown = screen.lines()
    assert len(shown) == len(STAGES) + 1
    line = re.compile(r"[-\d]+ [:,\d]+ WARNING another\.process: short")
    assert [each for each in shown if not line.fullmatch(each)] == []
