"""How long small packets take on their way to a client."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.api.http.slow_stream import TOKENS
from tests.support.processes import slow_link
from tests.support.processes.acknowledgements import wait_for_them
from tests.support.processes.server import LiveServer

DELAY_MS = 20
ATTEMPTS = 3
REQUEST = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


def trip_s(connection: socket.socket) -> float:
    """Seconds until an answer is there, head and body."""
    begin, received = time.perf_counter(), b""
    connection.sendall(REQUEST)
    while not received.endswith(b"}"):
        received += connection.recv(65536)
    return time.perf_counter() - begin


def test_a_second_answer_on_a_connection_is_as_fast_as_the_first(live: LiveServer) -> None:
    def second_trips() -> list[float]:
        seconds = []
        for _ in range(15):
            with socket.create_connection(("127.0.0.1", live.port), timeout=60) as connection:
                trip_s(connection)
                seconds.append(trip_s(connection))
        return seconds

    assert not wait_for_them(second_trips)


def test_tokens_come_one_by_one_over_a_slow_link(tmp_path: Path) -> None:
    """Held back until the last packet is acknowledged, they would come in twos and threes."""
    if missing := slow_link.why_not():
        pytest.skip(missing)
    module = (sys.executable, "-m", "tests.api.http.slow_stream", str(tmp_path))
    for _ in range(ATTEMPTS):  # a server that is kept waiting has more than one token to send
        found = json.loads(slow_link.in_namespace(DELAY_MS, *module))
        assert found["first_s"] > 2 * DELAY_MS / 1000, "the link is slow"
        if found["tokens"].count(1) > 0.8 * TOKENS:
            return
    raise AssertionError(f"tokens in each packet: {found['tokens']}")
