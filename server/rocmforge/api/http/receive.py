"""A client that sends its request a byte a minute must not hold a handler for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from rocmforge.errors import RequestTimeout


class ReceiveDeadline(ASGIMiddleware):
    """Gives each request's body `seconds` to arrive; what comes after it may take any time.

    Raises, from `receive`:
        RequestTimeout: the body is not complete by then.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Passes everything on, with a bounded `receive`."""
        deadline = asyncio.get_running_loop().time() + self._seconds
        is_complete = False

        async def bounded() -> Any:
            nonlocal is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise RequestTimeout(
                    f"The request did not arrive within {self._seconds:g} s."
                ) from None
            is_complete = message["type"] != "http.request" or not message.get("more_body")
            return message

        await next_app(scope, bounded, send)
