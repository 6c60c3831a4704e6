"""Live servers for tests, and what a test wants to know of them."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.server import LiveServer

SETTLE_S = 20.0


def live_server(log: Path, *arguments: str) -> LiveServer:
    """The real application and engine on a fake backend."""
    return LiveServer(["-m", "tests.api.live_app", "--port", "{port}", *arguments], log)


def metric(server: LiveServer, name: str, **labels: str) -> float:
    """The value of a metric that has one sample with these labels."""
    text = server.get("/metrics").text
    (value,) = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return value


def assert_settles(server: LiveServer) -> None:
    """Everything that ran has ended, no block is held, and the server still answers."""
    deadline = time.monotonic() + SETTLE_S
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    while left := {n: v for n in names if (v := metric(server, f"rocmforge_{n}"))}:
        assert time.monotonic() < deadline, left
    assert complete(server).status_code == 200


def complete(server: LiveServer) -> httpx.Response:
    """One token."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 1}
    return httpx.post(f"{server.url}/v1/completions", json=body)


def engine_pid(server: LiveServer) -> int:
    """The process of its one engine."""
    pid = server.process.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(child)
