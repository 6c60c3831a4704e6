"""A plain request whose client has left must not go on computing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar import Request

T = TypeVar("T")


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


async def unless_client_leaves(request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`, and cancels it as soon as the client disconnects.

    The framework does not cancel a handler by itself. The body must have been read before.

    Raises:
        ClientLeft: the client disconnected first.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
