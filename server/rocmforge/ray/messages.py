"""The messages between the ingress and a replica, besides bytes of bodies."""

from __future__ import annotations

from typing import Any, Final

import msgspec

_PASSED: Final = frozenset(
    (
        *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string"),
        *("root_path", "headers", "client", "server"),
    )
)


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of an answer; parts of its body follow, as bytes."""

    replica: str  # its id
    status: int
    headers: list[tuple[bytes, bytes]]

    def header(self, name: bytes) -> bytes:
        """Returns a header's value, b"" if there is none; names are in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), b"")


def portable(scope: Any) -> dict[str, Any]:
    """Returns what of an ASGI scope means the same in another process."""
    return {name: scope[name] for name in _PASSED if name in scope}
