"""Live servers for tests, and what a test wants to know of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes.children import ENGINE, children
from tests.support.processes.server import LiveServer

SETTLE_S = 60.0


def live_server(log: Path, *arguments: str) -> LiveServer:
    """The real application and engine on a fake backend."""
    return LiveServer(["-m", "tests.api.live_app", "--port", "{port}", *arguments], log)


def metric(server: LiveServer, name: str, **labels: str) -> float:
    """The value of a metric that has one sample with these labels."""
    lines = server.get("/metrics").text.splitlines(keepends=True)
    named = "".join(line for line in lines if line.startswith(name))  # to parse all takes 30 ms
    (value,) = [
        sample.value
        for family in text_string_to_metric_families(named)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return value


def assert_settles(server: LiveServer) -> None:
    """Everything that ran has ended, no block is held, and the server still answers.

    An engine that was killed when its last answer was already told may still be starting.
    """
    deadline = time.monotonic() + SETTLE_S
    until(server.is_ready, "the server does not become ready again")
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    while left := {n: v for n in names if (v := metric(server, f"rocmforge_{n}"))}:
        assert time.monotonic() < deadline, left
    assert complete(server).status_code == 200


def complete(server: LiveServer) -> httpx.Response:
    """One token."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 1}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=SETTLE_S)


def engine_pid(server: LiveServer) -> int:
    """The process of its one engine."""
    (pid,) = children(server.process.pid, ENGINE)
    return pid


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits until it is so."""
    deadline = time.monotonic() + SETTLE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)  # a scrape takes the server 9 ms
