"""What no test may leave to the speed of the machine that it runs on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
ASKS = {"get", "post", "put", "delete", "request", "stream", "Client", "AsyncClient"}


def impatient_calls(text: str) -> Iterator[int]:
    """The lines of calls of httpx that do not say how long they wait."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="httpx"), attr=name), keywords=given
            ) if name in ASKS and "timeout" not in {keyword.arg for keyword in given}:
                yield node.lineno


def test_no_request_is_given_up_after_the_five_seconds_of_httpx() -> None:
    found = []
    for path in TESTS.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "httpx" in text:
            found += [f"{path.relative_to(TESTS)}:{line}" for line in impatient_calls(text)]
    assert found == [], "say timeout="


def test_a_request_without_a_limit_is_found() -> None:
    text = "import httpx\nhttpx.get(url)\nhttpx.get(url, timeout=60)\nwith httpx.Client(): pass\n"
    assert [*impatient_calls(text)] == [2, 4]
