"""A progress bar while an engine loads."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rocmforge.engine.client import AsyncEngine

REFRESH_S = 0.1


async def wait_ready(engine: AsyncEngine, console: Console) -> None:
    """Waits for the engine, with a bar on a terminal and silently elsewhere.

    Raises:
        RocmForgeError: the model cannot be loaded.
    """
    ready = asyncio.create_task(engine.wait_ready())
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        ) as bar:
            task = bar.add_task("starting", total=1.0)
            while not ready.done():
                status = engine.status
                bar.update(task, description=status.stage, completed=status.progress)
                await asyncio.wait((ready,), timeout=REFRESH_S)
        await ready
    finally:
        ready.cancel()
