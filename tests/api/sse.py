"""Reads server-sent events the way a strict client does."""

from __future__ import annotations

import json
from typing import Any


def events(body: str) -> list[Any]:
    """Data of all events, parsed; `[DONE]` stays text. Comments are dropped."""
    found: list[Any] = []
    for block in body.replace("\r\n", "\n").split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        assert all(line.startswith("data: ") for line in lines), lines
        data = "\n".join(line.removeprefix("data: ") for line in lines)
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def chunks(body: str) -> list[Any]:
    """All events of a stream that ended well, without the last, `[DONE]`."""
    found = events(body)
    assert found[-1] == "[DONE]"
    return found[:-1]
