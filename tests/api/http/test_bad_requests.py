"""Whatever a client sends, it is told what was wrong with it, and nothing stays behind.

The table is in `bad_requests`. Its requests go to a live server one at a time, and all at once.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from msgspec import inspect

from rocmforge.api.openapi import endpoints
from tests.api.bad_requests import agents, generation, others
from tests.api.bad_requests.row import COMPLETIONS, GOOD, RERANK, BadRequest
from tests.api.conftest import Client
from tests.api.fake_engine import MAX_CONTEXT, FakeEngine
from tests.api.live import SETTLE_S, assert_settles
from tests.support.processes.server import LiveServer

TABLE = [*generation.ROWS, *agents.ROWS, *others.ROWS]
TAKEN = "request_params_n_count"
NEVER_NULL = {".text.format.name"}  # OpenAI requires it
HELD = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@pytest.fixture(scope="module")
def http(live: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=60) as client:
        yield client


def send(http: httpx.Client, row: BadRequest) -> httpx.Response:
    content = row.content
    if content is not None and not isinstance(content, bytes):
        content = json.dumps(content).encode()
    # The library would add headers of its own to a body of any other kind.
    return http.request(row.method, row.path, content=content, headers=dict(row.headers))


def assert_told(row: BadRequest, response: httpx.Response) -> None:
    """The answer has the status and exactly the body that the row documents."""
    assert response.status_code == row.status, response.text
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    message = body["error"]["message"]
    assert row.says in message
    if row.speaks_anthropic:
        assert body == {"type": "error", "error": {"type": row.error_type, "message": message}}
        assert (row.param or "") in message
    else:
        detail = {"type": row.error_type, "param": row.param, "code": row.code}
        assert body == {"error": {"message": message, **detail}}


def engine_numbers(http: httpx.Client) -> dict[str, float]:
    """The requests that came to the engine, and the slots and blocks that are in use."""
    found = re.findall(r"^rocmforge_(\w+)\{.*\} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    values = {name: float(value) for name, value in found}
    return {name: values[name] for name in (TAKEN, *HELD)}


def is_held(numbers: Mapping[str, float]) -> bool:
    """Whether a request still has something of the engine."""
    return any(numbers[name] for name in HELD)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_a_bad_request_is_told_what_was_wrong_and_leaves_nothing(
    http: httpx.Client, row: BadRequest
) -> None:
    taken = engine_numbers(http)[TAKEN]
    assert_told(row, send(http, row))
    deadline = time.monotonic() + SETTLE_S
    while is_held(numbers := engine_numbers(http)):
        assert time.monotonic() < deadline, numbers
    comes_to_the_engine = row.status == 504
    assert (numbers[TAKEN] > taken) == comes_to_the_engine
    assert http.post(COMPLETIONS, json=GOOD[COMPLETIONS]).status_code == 200


def test_all_of_them_at_once_leave_nothing(live: LiveServer, http: httpx.Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda row: send(http, row), TABLE))
    for row, answer in zip(TABLE, answers, strict=True):
        assert_told(row, answer)
    assert_settles(live)


def test_the_table_covers_every_endpoint_that_takes_a_body() -> None:
    rows = Counter(row.path for row in TABLE if row.method == "POST")
    assert len(TABLE) > 200
    assert {path: rows[path] for path in GOOD if rows[path] < 4} == {}


def fields_without_null(
    kind: inspect.Type, where: str, around: frozenset[type] = frozenset()
) -> Iterator[str]:
    """Yields the fields within a wire type that may be left out but may not be null."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from fields_without_null(inner, where, around)
        case inspect.UnionType(types=types):
            for one in types:
                yield from fields_without_null(one, where, around)
        case inspect.ListType(item_type=inner):
            yield from fields_without_null(inner, f"{where}[]", around)
        case inspect.StructType(cls=cls, fields=fields) if cls not in around:
            for field in fields:
                place = f"{where}.{field.encode_name}"
                yield from fields_without_null(field.type, place, around | {cls})
                takes_null = isinstance(field.type, inspect.AnyType) or (
                    isinstance(field.type, inspect.UnionType) and field.type.includes_none
                )
                if not field.required and not takes_null:
                    yield place


def test_null_asks_for_nothing_in_every_field_that_may_be_left_out() -> None:
    bodies = [endpoint.body for endpoint in endpoints() if endpoint.body is not None]
    found = {place for body in bodies for place in fields_without_null(inspect.type_info(body), "")}
    kinds = {place for place in found if place.endswith(".type")}  # say what the object is
    assert len(bodies) >= len(GOOD)
    assert found - kinds == NEVER_NULL


@pytest.mark.parametrize("path", [path for path in GOOD if path != RERANK])
def test_what_the_table_spoils_is_good(http: httpx.Client, path: str) -> None:
    assert http.post(path, json=GOOD[path]).status_code == 200


def test_the_wrong_method_is_told_the_right_one(http: httpx.Client) -> None:
    response = http.get("/v1/chat/completions")
    assert response.status_code == 405
    assert "POST" in response.headers["allow"]


@pytest.mark.parametrize("kind", ["input_audio", "file"])
def test_content_that_is_neither_text_nor_image_is_refused_by_name(
    chat: Any, engine: FakeEngine, kind: str
) -> None:
    content = [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": "x"}}]
    response = chat(messages=[{"role": "user", "content": content}])
    assert response.status_code == 400
    assert kind in response.json()["error"]["message"]
    assert engine.submitted == []


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None, "tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"best_of": 1},
        {"modalities": ["text"]},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"parallel_tool_calls": False, "safety_identifier": "x", "prompt_cache_key": "y"},
        {"some_field_of_2030": {"deep": [1, 2]}},
        {"stop": None, "temperature": None, "n": None, "max_tokens": None, "logit_bias": None},
        {"stop": [], "logit_bias": {}, "stop_token_ids": []},
        {"top_logprobs": 0},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_what_asks_for_nothing_is_accepted(chat: Any, fields: dict[str, Any]) -> None:
    assert chat(**fields).status_code == 200


def test_a_prompt_longer_than_the_context_is_refused_with_both_lengths(
    complete: Any, engine: FakeEngine
) -> None:
    response = complete(prompt=[1] * (MAX_CONTEXT + 5))
    detail = response.json()["error"]
    assert (response.status_code, detail["code"]) == (400, "context_length_exceeded")
    assert str(MAX_CONTEXT) in detail["message"]
    assert str(MAX_CONTEXT + 5) in detail["message"]
    assert engine.submitted == []


def test_a_prompt_may_fill_the_context_to_the_last_token(complete: Any) -> None:
    assert complete(prompt=[1] * 100, max_tokens=MAX_CONTEXT - 100).status_code == 200


@pytest.mark.parametrize("content_type", ["application/json; charset=UTF-8", "Application/JSON"])
def test_content_types_that_mean_json_are_accepted(client: Client, content_type: str) -> None:
    response = client.post(
        "/tokenize", content=b'{"prompt": "a"}', headers={"content-type": content_type}
    )
    assert response.status_code == 200
