"""The examples of docs/reference/api.md: the server takes the requests, and answers like that."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import msgspec
import pytest

from docs.tools.api_page import EXAMPLES
from rocmforge.api.openapi import document, endpoints
from tests.api.conftest import Client

TABLE: dict[str, dict[str, str]] = tomllib.loads(EXAMPLES.read_text(encoding="utf-8"))
_TYPE_OF_PART = re.compile(":[a-z]+}")
OPERATIONS = {
    f"{method} {_TYPE_OF_PART.sub('}', path)}": endpoint
    for endpoint in endpoints()
    for path in endpoint.handler.paths
    for method in endpoint.handler.http_methods
}


# The fake engine has a vocabulary of its own, and embeds nothing.
ASKED = [n for n in TABLE if "request" in TABLE[n]]
TAKEN = [
    name
    for name in ASKED
    if not name.endswith(("/embeddings", "/rerank", "/detokenize", "/load", "/unload"))
]
STREAMED = [name for name in TABLE if "events" in TABLE[name]]


def test_every_operation_has_an_example() -> None:
    documented = {
        f"{method.upper()} {path}"
        for path, operations in document(())["paths"].items()
        for method in operations
        if method != "head"
    }
    known_elsewhere = {"POST /rerank", "POST /v2/rerank"}
    assert documented - known_elsewhere == TABLE.keys()


@pytest.mark.parametrize("name", TAKEN)
def test_requests_are_taken(client: Client, name: str) -> None:
    body = json.loads(TABLE[name]["request"])
    response = client.post(name.partition(" ")[2], json={**body, "model": "tiny"})
    assert response.status_code == 200, response.text
    assert "x-ignored-fields" not in response.headers


@pytest.mark.parametrize("name", ASKED)
def test_requests_have_fields_of_their_type_only(name: str) -> None:
    given = json.loads(TABLE[name]["request"])
    body = OPERATIONS[name].body
    msgspec.convert(given, body)
    assert given.keys() <= set(body.__struct_fields__)


@pytest.mark.parametrize("name", [name for name in TABLE if "answer" in TABLE[name]])
def test_answers_are_of_their_type_and_leave_nothing_out(name: str) -> None:
    given = json.loads(TABLE[name]["answer"])
    typed = msgspec.convert(given, OPERATIONS[name].answer)
    assert_same(given, msgspec.to_builtins(typed))


@pytest.mark.parametrize("name", STREAMED)
def test_events_are_of_their_type_and_leave_nothing_out(name: str) -> None:
    events = [event.splitlines() for event in TABLE[name]["events"].strip().split("\n\n")]
    data = [lines[-1].removeprefix("data: ") for lines in events]
    for text in data:
        if text != "[DONE]":
            typed = msgspec.json.decode(text, type=OPERATIONS[name].event)
            assert_same(json.loads(text), msgspec.to_builtins(typed))


@pytest.mark.parametrize("name", STREAMED)
def test_requests_are_streamed_in_such_events(client: Client, name: str) -> None:
    body = {**json.loads(TABLE[name]["request"]), "model": "tiny", "stream": True}
    response = client.post(name.partition(" ")[2], json=body)
    told, shown = (
        {line for line in text.splitlines() if line.startswith("event: ")}
        for text in (response.text, TABLE[name]["events"])
    )
    assert shown <= told
    assert response.text.endswith("data: [DONE]\n\n") == ("[DONE]" in TABLE[name]["events"])


def assert_same(given: Any, typed: Any) -> None:
    """Fails for fields that only one of them has."""
    if isinstance(given, dict):
        assert given.keys() == typed.keys()
        for key in given:
            assert_same(given[key], typed[key])
    elif isinstance(given, list):
        for one, other in zip(given, typed, strict=True):
            assert_same(one, other)
