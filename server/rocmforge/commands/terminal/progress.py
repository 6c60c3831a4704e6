"""News of a model that loads: a bar on a terminal, lines of the log elsewhere."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rocmforge.engine.ipc.status import EngineStatus
from rocmforge.fleet.entry import Engine
from rocmforge.logs import LogFormat

logger = logging.getLogger(__name__)

REFRESH_S: Final = 0.1
LINE_EVERY_S: Final = 5.0


async def wait_ready(engine: Engine, console: Console, log_format: LogFormat) -> None:
    """Waits for an engine that has been started; see `wait_for`."""
    await wait_for(engine.wait_ready(), lambda: engine.status, console, log_format)


async def wait_for(
    loading: Coroutine[Any, Any, None],
    status: Callable[[], EngineStatus],
    console: Console,
    log_format: LogFormat,
) -> None:
    """Waits for a model to be loaded, and says how far it is.

    Args:
        loading: ends when it is loaded.
        status: of its engine.
        console: gets a bar if it is a terminal.
        log_format: what else is written there; with JSON there is no bar.

    Raises:
        RocmForgeError: it cannot be loaded.
    """
    ready = asyncio.create_task(loading)
    try:
        if console.is_terminal and log_format == "text":
            await _show_bar(ready, status, console)
        else:
            await _log_lines(ready, status)
        await ready
    finally:
        ready.cancel()


async def _show_bar(
    ready: asyncio.Task[None], status: Callable[[], EngineStatus], console: Console
) -> None:
    """Draws a bar on one line, and leaves the cursor at its beginning.

    So a line of the log, which the engine process may write at any time, takes the bar's place,
    and the bar is drawn again below.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("starting", total=1.0)
        _go_to_line_start(console)
        while not ready.done():
            now = status()
            bar.update(task, description=now.stage, completed=now.progress, refresh=True)
            _go_to_line_start(console)
            await asyncio.wait((ready,), timeout=REFRESH_S)


def _go_to_line_start(console: Console) -> None:
    console.file.write("\r")
    console.file.flush()


async def _log_lines(ready: asyncio.Task[None], status: Callable[[], EngineStatus]) -> None:
    """Writes a line for each stage, and for every few seconds of a long one."""
    stage, written = "", 0.0
    while not ready.done():
        now = status()
        if now.stage and (now.stage != stage or time.monotonic() - written >= LINE_EVERY_S):
            stage, written = now.stage, time.monotonic()
            logger.info("loading: %s, %.0f%%", stage, 100 * now.progress)
        await asyncio.wait((ready,), timeout=REFRESH_S)
