"""The names that a server answers to if anybody on this machine may use it."""

from __future__ import annotations

import ipaddress

from litestar.datastructures import Headers
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from rocmforge.errors import NotAuthorized


def is_loopback(host: str) -> bool:
    """Returns whether a name or address, without brackets, leads to this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class LocalNamesOnly(ASGIMiddleware):
    """Refuses requests for other names than this machine's own.

    A web page can let its own name point to 127.0.0.1 once it is loaded ("DNS rebinding"). Then the
    browser takes a server here for the page's own, and cross-origin rules protect nothing. What
    the browser cannot do is to leave the page's name out of the Host header.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Passes on what asks for a local name."""
        host = Headers.from_scope(scope).get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not is_loopback(name.removeprefix("[").removesuffix("]")):
            raise NotAuthorized(
                f"This server has no key and answers to localhost only, not to {name!r}. For other "
                "names, start it with --api-key or --insecure."
            )
        await next_app(scope, receive, send)
