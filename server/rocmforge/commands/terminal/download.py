"""How far a download is: a bar on a terminal, lines of the log elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from rocmforge.library.hub import HubFile, Meter
from rocmforge.logs import LogFormat

logger = logging.getLogger(__name__)

LINE_EVERY_S: Final = 10.0


@contextmanager
def download_meter(console: Console, log_format: LogFormat) -> Iterator[Meter]:
    """Shows downloads while it is open.

    Args:
        console: gets bars if it is a terminal.
        log_format: what else is written there; with JSON there is no bar.
    """
    if not console.is_terminal or log_format != "text":
        yield _Lines()
        return
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), DownloadColumn()),
        *(TransferSpeedColumn(), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console) as bars:
        yield _Bars(bars)


class _Bars:
    """A bar for each file."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars

    def begin(self, file: HubFile, done: int) -> None:
        """Draws the bar of a file, which begins where an earlier try has stopped."""
        name = PurePosixPath(file.path).name
        self._task = self._bars.add_task(name, total=file.num_bytes, completed=done)

    def advance(self, count: int) -> None:
        """Moves the bar."""
        self._bars.advance(self._task, count)


class _Lines:
    """A line at the beginning of each file, and every few seconds."""

    def begin(self, file: HubFile, done: int) -> None:
        """Writes the line of a file."""
        self._file, self._done, self._written = file, done, 0.0
        self.advance(0)

    def advance(self, count: int) -> None:
        """Counts bytes, and writes a line if the last one is old, or at the end."""
        self._done += count
        now, total = time.monotonic(), self._file.num_bytes
        if now - self._written >= LINE_EVERY_S or self._done >= total:
            self._written = now
            share = 100 * self._done / max(total, 1)
            logger.info("fetching %s: %.0f%% of %.2f GB", self._file.path, share, total / 1e9)
