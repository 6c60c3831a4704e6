"""The origin of a request."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, Final

from litestar import Request

from rocmforge.api.http.auth import caller_of
from rocmforge.api.http.keys import Caller
from rocmforge.engine.ipc.params import NO_KEY, Share
from rocmforge.errors import InvalidParameter

TIMEOUT: Final = "x-request-timeout"

_GIVEN_ID: Final = "x-request-id"
_LONGEST_ID: Final = 128
_LONGEST_S: Final = 1e9
"""30 years: a deadline beyond that is none, and would not fit into a message to the engine."""


def now_ns() -> int:
    """Returns the time on the clock of the engine's timings."""
    return time.monotonic_ns()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The facts about a request besides its body."""

    arrival_ns: int = field(default_factory=now_ns)  # when it was taken up
    caller: Caller | None = None  # None on a server without keys
    path: str = ""  # the route, without what it is about
    traceparent: str | None = None  # the client's own trace: https://www.w3.org/TR/trace-context
    timeout_s: float | None = None  # what its X-Request-Timeout header says
    given_id: str | None = None  # by which the client, or what stands before us, knows the request

    @property
    def share(self) -> Share:
        """The request's share of the engine."""
        return NO_KEY if self.caller is None else self.caller.share

    @classmethod
    def of(cls, request: Request[Any, Any, Any]) -> Origin:
        """Returns the origin of a request that has passed the guard.

        Raises:
            InvalidParameter: its timeout is not a number of seconds.
        """
        return cls(
            caller=caller_of(request),
            path=request.scope["path_template"],
            traceparent=request.headers.get("traceparent"),
            timeout_s=_seconds(request.headers.get(TIMEOUT)),
            given_id=given_id_of(request),
        )

    def deadline_ns(self, timeout_s: float | None = None) -> int | None:
        """Returns the earlier of the deadlines of body and header; None = there is none.

        Args:
            timeout_s: what the body says.
        """
        timeouts = [t for t in (timeout_s, self.timeout_s) if t is not None]
        if not timeouts or min(timeouts) > _LONGEST_S:
            return None
        return self.arrival_ns + int(min(timeouts) * 1e9)

    def seconds_left(self, timeout_s: float | None = None) -> float | None:
        """Returns the time until then; None = for ever. See `deadline_ns`."""
        deadline_ns = self.deadline_ns(timeout_s)
        return None if deadline_ns is None else max(0.0, (deadline_ns - now_ns()) * 1e-9)


def given_id_of(request: Request[Any, Any, Any]) -> str | None:
    """Returns the id that a request came with, for logs alone: anybody can write it."""
    given = request.headers.get(_GIVEN_ID)
    return given and given[:_LONGEST_ID]


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidParameter(
            "X-Request-Timeout must be a number of seconds above 0.", param=TIMEOUT
        )
    return seconds
