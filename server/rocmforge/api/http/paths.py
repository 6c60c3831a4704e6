"""The path that a client meant that asks for one that is not there."""

from __future__ import annotations

from collections.abc import Iterable


def similar_path(asked: str, paths: Iterable[str]) -> str | None:
    """Returns the path that was meant if the client has a wrong base URL.

    Most have one that lacks `/v1` or has it twice, or one with the prefix of another server.

    Args:
        asked: a path that is not served.
        paths: those that are; what has parameters is never meant.
    """
    tail = asked.rstrip("/").lower()
    plain = [path for path in paths if path != "/" and "{" not in path]
    if longer := [path for path in plain if tail and path.endswith(tail)]:
        return min(longer, key=len)
    return max([path for path in plain if tail.endswith(path)], key=len, default=None)
