"""One thing that doctor looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # it works, but not as it should
    ERROR = "error"  # the GPU cannot be used


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    check: str
    level: Level
    message: str
    repair: str | None = None  # a command, or what to do
