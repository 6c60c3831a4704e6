"""What only shows over real sockets and with a real engine process."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.live import SETTLE_S, assert_settles, engine_pid, live_server, metric, until
from tests.api.sse import chunks, events
from tests.support.processes.server import LiveServer

JSON = {"content-type": "application/json"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 3, **fields}).encode()


@pytest.mark.parametrize(
    "sequence", [["stream", "stream"], ["stream", "plain", "bad"], ["bad", "unknown", "stream"]]
)
def test_a_connection_is_kept_open_after_every_kind_of_answer(
    live: LiveServer, sequence: list[str]
) -> None:
    kinds = {
        "stream": ("/v1/completions", body(stream=True), 200),
        "plain": ("/v1/completions", body(), 200),
        "bad": ("/v1/completions", b"{", 400),
        "unknown": ("/v1/nothing", body(), 404),
    }
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=60)
    connection.connect()
    socket = connection.sock
    for kind in sequence:
        path, content, status = kinds[kind]
        connection.request("POST", path, content, JSON)
        response = connection.getresponse()
        assert response.status == status
        response.read()
        assert response.getheader("connection", "keep-alive") == "keep-alive"
        assert connection.sock is socket, f"closed after {kind}"
    connection.close()


def test_a_connection_that_the_client_closes_is_not_said_to_be_kept(live: LiveServer) -> None:
    headers = {**JSON, "connection": "close"}
    url = f"{live.url}/v1/completions"
    response = httpx.post(url, content=body(stream=True), headers=headers, timeout=60)
    assert response.headers.get_list("connection") == ["close"]


def test_an_offer_to_go_on_in_http_2_is_ignored(live: LiveServer) -> None:
    headers = {
        **JSON,  # as Java's HttpClient sends it
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    }
    with httpx.Client(base_url=live.url, headers=headers, timeout=60) as client:
        for stream in (False, True, False):
            answer = client.post("/v1/completions", content=body(stream=stream))
            assert answer.status_code == 200, answer.text


def test_a_stream_can_not_be_cached_or_buffered_on_its_way(live: LiveServer) -> None:
    response = httpx.post(
        f"{live.url}/v1/completions", content=body(stream=True), headers=JSON, timeout=60
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-accel-buffering"] == "no"
    assert chunks(response.text)


def test_the_engine_and_the_api_agree_on_greedy_text_streamed_or_not(live: LiveServer) -> None:
    with httpx.Client(base_url=live.url, headers=JSON, timeout=60) as client:
        for n in (1, 3):
            fields: dict[str, Any] = {"temperature": 0, "n": n, "max_tokens": 40}
            plain = client.post("/v1/completions", content=body(**fields)).json()
            stream = client.post("/v1/completions", content=body(**fields, stream=True)).text
            for choice in plain["choices"]:
                streamed = "".join(
                    c["choices"][0]["text"]
                    for c in chunks(stream)
                    if c["choices"][0]["index"] == choice["index"]
                )
                assert streamed == choice["text"]


def test_scoring_a_prompt_agrees_between_plain_and_streamed(live: LiveServer) -> None:
    fields: dict[str, Any] = {
        "prompt": list(range(100, 250)),
        "echo": True,
        "logprobs": 1,
        "max_tokens": 0,
    }
    with httpx.Client(base_url=live.url, headers=JSON, timeout=60) as client:
        plain = client.post("/v1/completions", content=body(**fields)).json()["choices"][0]
        found = chunks(client.post("/v1/completions", content=body(**fields, stream=True)).text)
    assert len(plain["logprobs"]["tokens"]) == 150
    assert plain["logprobs"]["token_logprobs"][0] is None
    assert None not in plain["logprobs"]["token_logprobs"][1:]
    assert found[0]["choices"][0]["logprobs"] == plain["logprobs"]
    assert found[-1]["choices"][0]["finish_reason"] == "length"


def test_choices_share_one_prefill_of_their_prompt(live: LiveServer) -> None:
    names = [f"rocmforge_prefix_cache_{what}_total" for what in ("queries", "hits")]
    before = [metric(live, name) for name in names]
    # 1000 tokens are 62 blocks of 16, and 8 tokens more, that each choice computes for itself.
    content = body(prompt=list(range(999, -1, -1)), n=4, seed=1, ignore_eos=True)
    answer = httpx.post(
        f"{live.url}/v1/completions", content=content, headers=JSON, timeout=60
    ).json()
    queries, hits = (metric(live, name) - b for name, b in zip(names, before, strict=True))
    assert (queries, hits) == (4 * 1000, 3 * 62 * 16)
    assert len({choice["text"] for choice in answer["choices"]}) == 4
    assert answer["usage"]["prompt_tokens"] == 1000
    assert answer["usage"]["completion_tokens"] == 4 * 3
    assert_settles(live)


def test_a_long_prompt_is_taken(live: LiveServer) -> None:
    content = body(prompt="hello world" * 15_000, max_tokens=1)
    response = httpx.post(f"{live.url}/v1/completions", content=content, headers=JSON, timeout=60)
    assert response.json()["usage"]["prompt_tokens"] == 30_000


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[LiveServer]:
    with live_server(tmp_path / "log", "--backend", "create_slow") as server:
        yield server


def test_a_killed_engine_fails_its_requests_and_comes_back(fragile: LiveServer) -> None:
    started = threading.Barrier(5, timeout=SETTLE_S)

    def stream() -> list[Any]:
        text = ""
        content = body(stream=True, max_tokens=4000, ignore_eos=True)
        url = f"{fragile.url}/v1/completions"
        with httpx.stream("POST", url, content=content, headers=JSON, timeout=60) as response:
            for part in response.iter_text():
                if not text:
                    started.wait()
                text += part
        return events(text)

    def plain() -> httpx.Response:
        url = f"{fragile.url}/v1/completions"
        return httpx.post(
            url, content=body(max_tokens=4000, ignore_eos=True), headers=JSON, timeout=60
        )

    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(stream) for _ in range(4)]
        plains = [pool.submit(plain) for _ in range(2)]
        started.wait()
        os.kill(engine_pid(fragile), signal.SIGKILL)
        for one in streams:
            assert one.result()[-1]["error"]["code"] == "engine_died"
        for answer in plains:
            assert answer.result().status_code == 503
    assert fragile.get("/health").status_code == 200
    until(lambda: fragile.get("/ready").status_code == 200, "it does not come back")
    assert fragile.get("/ready").json()["restarts"] == 1
    assert_settles(fragile)


def test_an_engine_that_fails_in_a_step_is_an_error_for_its_request(tmp_path: Path) -> None:
    backend = ("--backend", "create_failing_collect_2")
    with live_server(tmp_path / "log", *backend) as server:
        url = f"{server.url}/v1/completions"
        content = body(stream=True, max_tokens=50, ignore_eos=True)
        found = events(httpx.post(url, content=content, headers=JSON, timeout=60).text)
        assert found[-1]["error"]["code"] == "engine_died"
        assert "planted" not in found[-1]["error"]["message"]
        # It is logged once the process has ended.
        until(lambda: "planted" in server.log, "nothing is said of why it ended")
        assert server.get("/health").status_code == 200
