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
    digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def guard(connection: ASGIConnection, handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]
        if handler.opt.get(PUBLIC):
            return
        given = _given_key(connection)
        if given is None:
            raise NotAuthenticated(
                "You did not provide an API key. Send it as `Authorization: Bearer KEY`."
            )
        # Header values are bytes that arrive as Latin-1. Digests have one length, and all are
        # compared: neither length nor place is leaked.
        given_digest = hashlib.sha256(given.encode("latin-1")).digest()
        matches = [hmac.compare_digest(given_digest, digest) for digest in digests]
        if not any(matches):
            raise NotAuthenticated("Incorrect API key provided.")

    return guard


def _given_key(connection: ASGIConnection) -> str | None:  # type: ignore[type-arg]
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return connection.headers.get("x-api-key")
