"""API keys: `Authorization: Bearer KEY`, or `X-Api-Key: KEY`.

Routes marked `opt={PUBLIC: True}` need none: liveness, readiness, version and metrics are for
machines that supervise the server, and tell nothing about what is asked of it.
"""

from __future__ import annotations

import hashlib
import hmac

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from rocmforge.errors import NotAuthenticated

PUBLIC = "public"


def key_guard(keys: tuple[str, ...]) -> Guard:
    """A guard that lets requests with one of `keys` pass, in time that does not depend on which."""
    digests = [_digest(key) for key in keys]

    def guard(connection: ASGIConnection, handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]
        if handler.opt.get(PUBLIC):
            return
        given = _given_key(connection)
        if given is None:
            raise NotAuthenticated(
                "You did not provide an API key. Send it as `Authorization: Bearer KEY`."
            )
        # Digests have one length, and all are compared: neither length nor place is leaked.
        matches = [hmac.compare_digest(_digest(given), digest) for digest in digests]
        if not any(matches):
            raise NotAuthenticated("Incorrect API key provided.")

    return guard


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _given_key(connection: ASGIConnection) -> str | None:  # type: ignore[type-arg]
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return connection.headers.get("x-api-key")
