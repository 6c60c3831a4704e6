"""A progress bar while an engine loads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.ipc.status import EngineStatus

REFRESH_S = 0.1


async def wait_ready(engine: AsyncEngine, console: Console) -> None:
    """Waits for an engine that has been started; see `wait_for`."""
    await wait_for(engine.wait_ready(), lambda: engine.status, console)


async def wait_for(
    loading: Coroutine[Any, Any, None], status: Callable[[], EngineStatus], console: Console
) -> None:
    """Waits for a model to be loaded, with a bar on a terminal and silently elsewhere.

    Raises:
        RocmForgeError: it cannot be loaded.
    """
    ready = asyncio.create_task(loading)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        ) as bar:
            task = bar.add_task("starting", total=1.0)
            while not ready.done():
                now = status()
                bar.update(task, description=now.stage, completed=now.progress)
                await asyncio.wait((ready,), timeout=REFRESH_S)
        await ready
    finally:
        ready.cancel()
