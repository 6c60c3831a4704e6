"""Fields that the server does not know: named in the answer and the log, or refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from litestar.testing import TestClient

from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.http.unknown_fields import HEADER
from rocmforge.logs import FIELDS
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model

HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": HELLO},
    "/v1/completions": {"model": "tiny", "prompt": "hello"},
    "/v1/responses": {"model": "tiny", "input": "hello"},
    "/v1/messages": {"model": "tiny", "messages": HELLO, "max_tokens": 5},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": HELLO},
    "/v1/embeddings": {"model": "tiny", "input": "hello"},
    "/v1/rerank": {"model": "tiny", "query": "hello", "documents": ["hello"]},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1]},
    "/models/load": {"model": "tiny"},
}


@pytest.fixture
def strict(engine: FakeEngine) -> Iterator[Client]:
    """A client of a server with --strict-requests."""
    app = build_app(make_model(engine), ApiSettings(strict_requests=True))
    with TestClient(app) as client:
        yield client


@pytest.fixture
def ignored(caplog: pytest.LogCaptureFixture) -> Any:
    """What the log says was ignored."""
    caplog.set_level(logging.INFO)

    def names() -> list[str]:
        found = [getattr(record, FIELDS, {}) for record in caplog.records]
        return [fields["ignored"] for fields in found if "ignored" in fields]

    return names


@pytest.mark.parametrize("path", BODIES)
def test_every_endpoint_names_what_it_ignores(client: Client, ignored: Any, path: str) -> None:
    response = client.post(path, json={**BODIES[path], "mirostat_tau": 5, "no_such": {}})
    assert response.headers[HEADER] == "mirostat_tau, no_such"
    assert ignored() == ["mirostat_tau, no_such"]


@pytest.mark.parametrize("path", BODIES)
def test_a_strict_server_refuses_what_it_does_not_know(strict: Client, path: str) -> None:
    assert "does not know" not in strict.post(path, json=BODIES[path]).text
    response = strict.post(path, json={**BODIES[path], "no_such": 1})
    assert response.status_code == 400
    assert "does not know the field no_such" in response.text


def test_the_refusal_names_the_field_for_programs(strict: Client) -> None:
    body = {**BODIES["/v1/completions"], "no_such": 1}
    error = strict.post("/v1/completions", json=body).json()["error"]
    assert (error["param"], error["code"]) == ("no_such", "unsupported_parameter")


def test_a_request_of_known_fields_has_no_such_header(chat: Any, ignored: Any) -> None:
    assert HEADER not in chat(temperature=0).headers
    assert ignored() == []


def test_a_stream_names_them_too(chat: Any) -> None:
    assert chat(stream=True, no_such=1).headers[HEADER] == "no_such"


def test_null_asks_for_nothing(chat: Any) -> None:
    assert HEADER not in chat(no_such=None).headers


def test_options_inside_are_looked_at(chat: Any) -> None:
    schema = {"name": "x", "strict": True, "schema": {"type": "object"}, "shape": 1}
    response = chat(
        stream=True,
        stream_options={"include_usage": True, "include_weather": True},
        response_format={"type": "json_schema", "json_schema": schema},
    )
    assert response.headers[HEADER] == (
        "stream_options.include_weather, response_format.json_schema.shape"
    )


def test_messages_may_carry_what_other_answers_brought(chat: Any) -> None:
    message = {"role": "user", "content": "hello", "annotations": [], "id": "msg_1"}
    assert HEADER not in chat(messages=[message]).headers


def test_names_cannot_end_the_header_or_make_it_endless(chat: Any) -> None:
    names = {"a\r\nset-cookie: x": 1, "é" * 1000: 1} | {f"f{n}": 1 for n in range(100)}
    response = chat(**names)
    assert "set-cookie" not in response.headers
    shown = response.headers[HEADER]
    assert shown.startswith('"a\\r\\nset-cookie: x", ')
    assert shown.endswith(", and 86 more")
    assert len(shown) < 1500


def test_unknown_parameters_of_a_query_are_named(client: Client) -> None:
    stored = client.post("/v1/responses", json={**BODIES["/v1/responses"], "store": True}).json()
    response = client.get(f"/v1/responses/{stored['id']}?no_such=1")
    assert response.status_code == 200
    assert response.headers[HEADER] == "no_such"


@pytest.mark.parametrize("path", BODIES)
def test_a_field_whose_name_is_not_utf8_is_a_mistake_of_the_request(
    client: Client, path: str
) -> None:
    body = msgspec.json.encode({**BODIES[path], "Echo": True}).replace(b"Echo", b"\xeccho")
    response = client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "not valid UTF-8" in response.text
