"""The requests that a web page may have a browser send: none that changes anything.

A page of any origin may send forms, plain text, and requests without a body, and the browser asks
nobody before it does. Without keys, a server on loopback would do what the page wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from rocmforge.errors import NotAuthorized

_SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_OWN_SITES: Final = frozenset(("same-origin", "none"))  # none: the user typed the address


def browser_guard(cors_origins: Sequence[str]) -> Guard:
    """Returns the one rule for all routes that change something.

    A body must be JSON, for which browsers ask first, and the page must be of this origin or of one
    that `--cors-origin` lists. Programs that are no browsers say nothing of an origin.
    """

    # Litestar calls what is not async in a thread.
    async def guard(connection: ASGIConnection, handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]
        assert isinstance(connection, Request), "there are no other routes"
        if connection.method in _SAFE_METHODS:
            return
        headers = connection.headers
        length = headers.get("content-length", "0")
        if "content-type" in headers or "transfer-encoding" in headers or length != "0":
            _check_json(connection)
        if _is_foreign(headers, cors_origins):
            raise NotAuthorized(
                "A page of another origin may not do this. Its origin can be allowed with "
                "--cors-origin."
            )

    return guard


def _check_json(request: Request[Any, Any, Any]) -> None:
    """Raises HTTPException with status 415 for a body that is compressed, or not JSON in UTF-8."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(
            status_code=415,
            detail="Compressed bodies are not accepted: send it without Content-Encoding.",
        )
    content_type, parameters = request.content_type
    charset = parameters.get("charset", "utf-8").lower()
    if content_type.lower() != "application/json" or charset not in {"utf-8", "utf8"}:
        raise HTTPException(
            status_code=415,
            detail="The body must be JSON in UTF-8, sent with Content-Type: application/json.",
        )


def _is_foreign(headers: Headers, cors_origins: Sequence[str]) -> bool:
    """Returns whether a page of an origin that is not allowed has sent this.

    Browsers that do not send Sec-Fetch-Site yet send Origin, and pages can change neither.
    """
    origin = headers.get("origin")
    if "*" in cors_origins or (origin is not None and origin in cors_origins):
        return False
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OWN_SITES
    if origin is None:
        return False
    return origin.partition("://")[2].lower() != headers.get("host", "").lower()
