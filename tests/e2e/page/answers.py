"""Answers that no model has to be talked into: what a server would stream, given to the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Page, Route

PIECES = 200


def answer_with(page: Page, text: str = "", **given: Any) -> list[dict[str, Any]]:
    """Answers what the page asks from now on; returns where the bodies of its requests appear.

    Args:
        page: in the browser.
        text: of the answer.
        given: `thoughts`, `calls`.
    """
    bodies: list[dict[str, Any]] = []
    stream = "".join(_events(text, **given)) + "data: [DONE]\n\n"

    def fulfil(route: Route) -> None:
        bodies.append(route.request.post_data_json or {})
        route.fulfill(headers={"content-type": "text/event-stream"}, body=stream)

    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", fulfil)
    return bodies


def _events(text: str, thoughts: str = "", calls: Any = None) -> Iterator[str]:
    for field, whole in (("reasoning_content", thoughts), ("content", text)):
        length = len(whole) // PIECES + 1
        for start in range(0, len(whole), length):
            yield _event({field: whole[start : start + length]})
    if calls is not None:
        yield _event({"tool_calls": calls})
    yield _event({}, "stop")


def _event(delta: dict[str, Any], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    usage = {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}
    return f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\n"
