"""Where a request comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Request

from rocmforge.api.auth import caller_of
from rocmforge.api.keys import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is known of a request besides its body."""

    caller: Caller | None = None  # None on a server without keys
    path: str = ""  # the route, without what it is about
    traceparent: str | None = None  # the client's own trace: https://www.w3.org/TR/trace-context

    @classmethod
    def of(cls, request: Request[Any, Any, Any]) -> Origin:
        """The origin of a request that has passed the guard."""
        return cls(
            caller=caller_of(request),
            path=request.scope["path_template"],
            traceparent=request.headers.get("traceparent"),
        )
