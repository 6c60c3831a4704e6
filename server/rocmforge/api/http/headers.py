"""Headers that answers carry, errors included."""

from __future__ import annotations

from typing import Final

from litestar.types import BeforeMessageSendHookHandler, Message, Scope

_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),  # a browser must not take JSON for a page
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),  # answers are personal
)
_REQUEST_ID: Final = ("x-request-id", "request-id")  # OpenAI's and Anthropic's
_WITH_TLS: Final = (b"strict-transport-security", b"max-age=31536000")


def request_id_headers(request_id: str) -> dict[str, str]:
    """Returns headers with the id by which clients and logs name a request."""
    return dict.fromkeys(_REQUEST_ID, request_id)


def security_headers(*, has_tls: bool) -> BeforeMessageSendHookHandler:
    """Makes a hook that adds them, unless the answer has such a header already."""
    wanted = (*_ALWAYS, _WITH_TLS) if has_tls else _ALWAYS

    async def add(message: Message, scope: Scope) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *(header for header in wanted if header[0] not in given),
            ]

    return add
