"""Authorisation: `Authorization: Bearer KEY`, or `X-Api-Key: KEY`.

Routes marked `opt={PUBLIC: True}` need no key: they tell supervisors whether the server lives, and
nothing about what is asked of it; what went wrong they tell holders of a key only.
`opt={SCOPE: ...}` names what a route needs instead of `user`.
"""

from __future__ import annotations

from typing import Final

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from rocmforge.api.http.keys import Caller, Keyring, Scope
from rocmforge.errors import NotAuthenticated, NotAuthorized

PUBLIC: Final = "public"
SCOPE: Final = "scope"
CALLER: Final = "caller"
"""Where a connection's state holds the `Caller`; absent without keys."""
_STRANGER: Final = "stranger"


def key_guard(keys: Keyring) -> Guard:
    """Makes a guard that lets requests with one of `keys` pass, and notes whose it is."""

    # Litestar calls what is not async in a thread.
    async def guard(connection: ASGIConnection, handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]
        if not keys:
            return
        given = _given_key(connection)
        # Header values are bytes that arrive as Latin-1.
        caller = keys.find(given.encode("latin-1")) if given else None
        connection.state[_STRANGER] = caller is None
        if handler.opt.get(PUBLIC):
            return
        if not given:
            raise NotAuthenticated(
                "You did not provide an API key. Send it as `Authorization: Bearer KEY`."
            )
        if caller is None:
            raise NotAuthenticated("Incorrect API key provided.")
        needed = handler.opt.get(SCOPE, Scope.USER)
        if caller.key.scope not in (needed, Scope.ADMIN):
            raise NotAuthorized(f"This key's scope is {caller.key.scope}; {needed} is needed here.")
        connection.state[CALLER] = caller

    return guard


def caller_of(connection: ASGIConnection) -> Caller | None:  # type: ignore[type-arg]
    """Returns whose key the request came with; None on a server without keys."""
    caller: Caller | None = connection.state.get(CALLER)
    return caller


def is_stranger(connection: ASGIConnection) -> bool:  # type: ignore[type-arg]
    """Returns whether whoever asks for a public route has no key, on a server with keys."""
    return bool(connection.state.get(_STRANGER))


def _given_key(connection: ASGIConnection) -> str | None:  # type: ignore[type-arg]
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return connection.headers.get("x-api-key")
