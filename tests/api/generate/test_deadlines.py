"""How long a client is willing to wait."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine
from tests.api.live import assert_settles
from tests.support.processes.server import LiveServer

BODY = {"model": "tiny", "prompt": "hello"}
HEADER = "x-request-timeout"


def deadline(engine: FakeEngine) -> float | None:
    """Seconds from now, of the latest request."""
    deadline_ns = engine.submitted[-1].deadline_ns
    return None if deadline_ns is None else (deadline_ns - time.monotonic_ns()) * 1e-9


def test_without_a_timeout_there_is_no_deadline(client: Client, engine: FakeEngine) -> None:
    client.post("/v1/completions", json=BODY)
    assert deadline(engine) is None


@pytest.mark.parametrize(
    ("fields", "headers", "seconds"),
    [
        ({"timeout": 30}, {}, 30),
        ({}, {HEADER: "20.5"}, 20.5),
        ({"timeout": 30}, {HEADER: "20"}, 20),
        ({"timeout": 10}, {HEADER: "20"}, 10),
    ],
)
def test_the_earlier_one_of_body_and_header_counts(
    client: Client, engine: FakeEngine, fields: Any, headers: Any, seconds: float
) -> None:
    client.post("/v1/completions", json={**BODY, **fields}, headers=headers)
    given = deadline(engine)
    assert given is not None
    assert 0 < given <= seconds


@pytest.mark.parametrize("seconds", [1e10, 1e300])
def test_a_deadline_beyond_all_clocks_is_none(
    client: Client, engine: FakeEngine, seconds: float
) -> None:
    answer = client.post("/v1/completions", json={**BODY, "timeout": seconds})
    assert answer.status_code == 200
    assert deadline(engine) is None


def test_chats_have_deadlines_too(chat: Any, engine: FakeEngine) -> None:
    chat(timeout=5)
    given = deadline(engine)
    assert given is not None
    assert 0 < given <= 5


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_header_that_is_no_time_is_a_400(client: Client, text: str) -> None:
    answer = client.post("/v1/completions", json=BODY, headers={HEADER: text})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == HEADER


def test_a_field_that_is_no_time_is_a_400(client: Client) -> None:
    answer = client.post("/v1/completions", json={**BODY, "timeout": 0})
    assert answer.json()["error"]["param"] == "timeout"


def test_a_request_that_takes_longer_is_a_504(slow: LiveServer) -> None:
    body = {**BODY, "max_tokens": 5000, "timeout": 0.3, "ignore_eos": True}
    answer = httpx.post(f"{slow.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    assert_settles(slow)
