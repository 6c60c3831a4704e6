"""The base of everything that crosses between the HTTP side and the engine process."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Base of everything that crosses; compact and immutable."""
