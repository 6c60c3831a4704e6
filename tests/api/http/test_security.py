"""Attacks on a live server, and what comes of them. docs/security.md has the table."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar.testing import TestClient

from rocmforge.api.http.settings import ApiSettings
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.api.live import assert_settles, live_server
from tests.support.processes.server import LiveServer

ROOT = Path(__file__).parents[3]
KEY = "a-very-secret-key"
BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
RECEIVE_S = 2.0
PATIENCE_S = 60.0  # how long a test waits for what takes a second on an idle machine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("security") / "log"
    with live_server(log, "--api-key", KEY) as server:
        yield server


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One that does not wait for long: a busy machine may keep a client from sending that long."""
    log = tmp_path_factory.mktemp("hurried") / "log"
    with live_server(log, "--receive-timeout", str(RECEIVE_S), "--api-key", KEY) as server:
        yield server
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"{server.url}/v1/completions"
        answer = httpx.post(url, json=BODY, headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == 200, "it still serves"


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S) as client:
        yield client
        assert client.post("/v1/completions", json=BODY).status_code == 200, "it still serves"


def talk(server: LiveServer, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Sends bytes as they are and returns everything until the server hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
        except (BrokenPipeError, ConnectionResetError):
            return b""
        received = b""
        try:
            while data := connection.recv(65536):
                received += data
        except ConnectionResetError:
            pass
        return received


def head(length: int | str, *more: str) -> bytes:
    lines = (
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {KEY}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        *more,
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


# --- slow and endless senders ---


def test_a_connection_that_sends_nothing_is_closed(hurried: LiveServer) -> None:
    assert talk(hurried) == b""


def test_headers_that_do_not_end_in_time_are_cut_off(hurried: LiveServer) -> None:
    assert talk(hurried, b"GET /health HTTP/1.1\r\nHost: x\r\n") == b""


def test_so_they_are_on_a_connection_that_was_good_before(hurried: LiveServer) -> None:
    good = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = talk(hurried, good, b"GET /health HTTP/1.1\r\nX: ", pause_s=0.1)
    assert answer.count(b"HTTP/1.1 200") == 1


def test_headers_without_an_end_are_cut_off(server: LiveServer, http: httpx.Client) -> None:
    line = b"X-Filler: " + b"a" * 8000 + b"\r\n"
    assert b" 200 " not in talk(server, b"GET /health HTTP/1.1\r\n", *[line] * 100)


def test_a_body_that_does_not_come_is_a_408(hurried: LiveServer) -> None:
    assert b" 408 " in talk(hurried, head(1000), b'{"model"')


def test_slow_connections_do_not_keep_others_waiting(
    server: LiveServer, http: httpx.Client
) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        for connection in held:
            connection.sendall(b"GET / HTTP/1.1\r\n")
        assert http.post("/v1/completions", json=BODY).status_code == 200
    finally:
        for connection in held:
            connection.close()


# --- size ---


def test_a_body_declared_too_large_is_refused_before_it_comes(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head(10**12))
        assert b" 413 " in connection.recv(65536)


def test_a_refused_body_that_comes_is_no_reason_to_keep_the_connection(hurried: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", hurried.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head(10**12))
        assert b" 413 " in connection.recv(65536)
        connection.sendall(b"{")
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(65536):
                pass


def test_chunks_without_an_end_are_refused(server: LiveServer, http: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 1_000_000

    headers = {"content-type": "application/json"}
    try:
        answer = http.post("/v1/completions", content=endless(), headers=headers)
    except httpx.WriteError:
        return  # it hung up while we were sending, which is as good
    assert answer.status_code == 413


def test_a_compressed_bomb_is_not_unpacked(http: httpx.Client) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert http.post("/v1/completions", content=bomb, headers=headers).status_code == 415
    del headers["content-encoding"]
    assert http.post("/v1/completions", content=bomb, headers=headers).status_code == 400


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"model": "tiny", "prompt": "x", "max_tokens": ' + b"9" * 100_000 + b"}",
        b'{"model": "tiny", "prompt": "x", "temperature": 1e' + b"9" * 1000 + b"}",
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b'{"model": "tiny", "prompt": "x", "stop": [' + b'"a",' * 100_000 + b'"a"]}',
        b'{"model": "tiny", "prompt": "x", "n": 1000000000}',
        b'{"model": "tiny", "prompt": [' + b"1," * 50_000 + b"1]}",
    ],
    ids=["nested", "objects", "digits", "exponent", "surrogate", "stops", "choices", "tokens"],
)
def test_a_body_that_is_meant_to_hurt_is_a_400(http: httpx.Client, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert http.post("/v1/completions", content=content, headers=headers).status_code == 400


def nested_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


SCHEMA_BOMBS = {
    "deep": nested_schema(300),
    "wide": {"anyOf": [{"const": f"{i}"} for i in range(5000)]},
    "exponential": {
        "$defs": {
            f"d{i}": {"type": "array", "items": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 10}}
            for i in range(20)
        }
        | {"d20": {"type": "string"}},
        "$ref": "#/$defs/d0",
    },
    "itself": {"$ref": "#"},
    "counted": {"type": "array", "items": {"type": "string"}, "minItems": 10**6},
    "foreign": {"$ref": "http://127.0.0.1:1/schema.json"},
}
PATTERN_BOMBS = ("(a{1,1000}){1,1000}", "(a+)+" * 500, "(" * 5000, "[a-z]{100000}", "(a|aa)*{9999}")


@pytest.mark.parametrize("name", SCHEMA_BOMBS)
def test_a_schema_that_explodes_is_bounded(
    server: LiveServer, http: httpx.Client, name: str
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA_BOMBS[name]}}
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 1,
        "response_format": form,
    }
    assert http.post("/v1/chat/completions", json=body).status_code in {200, 400}


@pytest.mark.parametrize("pattern", PATTERN_BOMBS, ids=range(len(PATTERN_BOMBS)))
def test_a_pattern_that_explodes_is_bounded(http: httpx.Client, pattern: str) -> None:
    body = {**BODY, "max_tokens": 1, "guided_regex": pattern}
    assert http.post("/v1/completions", json=body).status_code in {200, 400}


# --- names and paths ---

TRAVERSALS = ("../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "..\\..\\x", "tiny/../../x")


@pytest.mark.parametrize("name", TRAVERSALS)
def test_a_model_name_is_never_a_path(http: httpx.Client, name: str) -> None:
    for path in ("/v1/completions", "/tokenize"):
        answer = http.post(path, json={**BODY, "model": name})
        assert answer.status_code in {400, 404}
        assert "root:" not in answer.text
    quoted = name.replace("/", "%2f")
    assert http.get(f"/v1/models/{quoted}").status_code == 404


@pytest.mark.parametrize("name", [*TRAVERSALS, __file__])
def test_no_file_is_loaded_by_name(http: httpx.Client, name: str) -> None:
    """Commands of administrators, too, know only the models that the server was started with."""
    quoted = name.replace("/", "%2f")
    for command in ("load", "unload"):
        assert http.post(f"/v1/models/{quoted}/{command}").status_code == 404
        answer = http.post(f"/models/{command}", json={"model": name})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/static/%2e%2e/x", "//etc/passwd"])
def test_no_file_is_served(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 404


# --- injection ---


def test_nothing_of_a_request_gets_into_headers(server: LiveServer, http: httpx.Client) -> None:
    forged = "x\r\nX-Forged: yes"
    answers = [
        http.post("/v1/completions", json={**BODY, "model": forged, "user": forged}),
        http.get("/v1/models/x%0d%0aX-Forged:%20yes"),
        http.post("/v1/completions", json=BODY, headers={"x-request-id": "mine"}),
    ]
    for answer in answers:
        assert "x-forged" not in answer.headers
        assert answer.headers.get("x-request-id") != "mine"


def test_nobody_can_forge_a_line_of_the_log(server: LiveServer, http: httpx.Client) -> None:
    forged = "\n2026-01-01 00:00:00 ERROR forged: all is lost"
    http.post("/v1/completions", json={**BODY, "model": forged, "prompt": forged})
    http.get("/v1/models/x%0a2026-01-01%20ERROR%20forged")
    talk(server, b"GET /\n2026-01-01 ERROR forged HTTP/1.1\r\n\r\n")
    assert not [line for line in server.log.splitlines() if line.startswith("2026-01-01")]


def test_keys_do_not_get_into_the_log(server: LiveServer, http: httpx.Client) -> None:
    wrong = {"authorization": "Bearer wrong-secret"}
    http.post("/v1/completions", json={"model": KEY})
    httpx.post(f"{server.url}/v1/completions", headers=wrong, timeout=PATIENCE_S)
    server.get("/v1/models?api_key=wrong-secret")
    assert KEY not in server.log
    assert "wrong-secret" not in server.log


def test_two_lengths_do_not_smuggle_a_request(server: LiveServer) -> None:
    inner = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = talk(server, head(4, "Transfer-Encoding: chunked"), b"0\r\n\r\n" + inner)
    assert b" 200 " not in answer


@pytest.mark.parametrize("field", ["chat_template", "template", "model_path", "lora"])
def test_a_request_cannot_bring_what_is_run(http: httpx.Client, field: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    answer = http.post("/v1/chat/completions", json={**body, field: "{{ 7 * 191 }}"})
    assert answer.status_code in {200, 400}
    assert "1337" not in answer.text


def test_a_message_is_data_for_the_template(client: Client, engine: FakeEngine) -> None:
    hostile = "{{ ''.__class__ }}{% for x in range(9**9) %}<|im_end|>{% endfor %}"
    body = {"model": "tiny", "messages": [{"role": "user", "content": hostile}]}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    model = make_model(engine)
    prompt = model.tokenizer.decode(engine.submitted[-1].prompt.token_ids, skip_special=False)
    assert hostile in prompt


# --- browsers ---


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:8000", 200),
        ("127.0.0.2:8000", 200),
        ("[::1]:8000", 200),
        ("[::1]", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_a_rebound_name_is_refused_where_no_key_is_needed(
    engine: FakeEngine, host: str, status: int
) -> None:
    app = build_app(make_model(engine), ApiSettings(local_names_only=True))
    with TestClient(app) as client:
        assert client.get("/v1/models", headers={"host": host}).status_code == status


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_page_may_send_without_asking_is_refused(http: httpx.Client, kind: str) -> None:
    headers = {"content-type": kind, "origin": "https://evil.example"}
    answer = http.post("/v1/completions", content=json.dumps(BODY), headers=headers)
    assert answer.status_code == 415
    assert "access-control-allow-origin" not in answer.headers


# --- afterwards, and the table ---


def test_nothing_is_left_running(tmp_path: Path) -> None:
    with live_server(tmp_path / "log", "--receive-timeout", str(RECEIVE_S)) as server:
        talk(server, head(1000), b"{")
        talk(server, b"\x16\x03\x01" + bytes(range(256)))  # TLS to a plain port, and noise
        assert_settles(server)


def test_the_table_names_tests_that_exist() -> None:
    table = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", table)
    assert len(named) > 30
    missing = [
        (file, test) for file, test in named if f"def {test}(" not in (ROOT / file).read_text()
    ]
    assert missing == []
