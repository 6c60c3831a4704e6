"""The engine process is killed under load, again and again.

How often is said by $ROCMFORGE_TEST_KILLS (default: 1, for CI); `pytest -s` shows how long the
service was away.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import httpx
import pytest

from tests.api.live import metric
from tests.e2e.conftest import SMOLLM2_NAME, serve_command
from tests.support.models.shallow import write_shallow
from tests.support.processes.children import ENGINE, children
from tests.support.processes.server import LiveServer

pytestmark = [pytest.mark.model, pytest.mark.slow]

STREAMS = 16
KILLS = int(os.environ.get("ROCMFORGE_TEST_KILLS", "1"))
PATIENCE_S = 120.0
RESTARTS = "rocmforge_engine_restarts_total"
TOKENS = 24
LAYERS = 8  # of thirty: it starts again and again


def engine_pid(server: LiveServer) -> int:
    """The one child that runs the engine."""
    (pid,) = children(server.process.pid, ENGINE)
    return pid


def stream(url: str, number: int, begun: Queue[int]) -> tuple[str, dict[str, object] | None]:
    """The text of one stream, and its error event if there was one."""
    body = {
        "model": SMOLLM2_NAME,
        "prompt": f"{number}, {number + 1}, {number + 2},",
        "max_tokens": TOKENS,
        "seed": number,
        "temperature": 0.8,
        "stream": True,
        "ignore_eos": True,
    }
    text, error, is_done = "", None, False
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=body, timeout=120, verify=False
    ) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                is_done = True
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                error = event["error"]
                continue
            if not text:
                begun.put(number)
            text += event["choices"][0]["text"]
    assert is_done != (error is not None), "a stream ends in exactly one way"
    return text, error


def run_streams(
    server: LiveServer, *, kill: bool
) -> tuple[list[tuple[str, dict[str, object] | None]], float]:
    """All streams at once; the engine is killed when half of them speak.

    Returns:
        What each stream got, and the seconds until the server was ready after the kill.
    """
    begun: Queue[int] = Queue()
    recovery_s = 0.0
    with ThreadPoolExecutor(STREAMS) as pool:
        running = [pool.submit(stream, server.url, n, begun) for n in range(STREAMS)]
        if kill:
            for _ in range(STREAMS // 2):
                begun.get(timeout=120)
            restarts = metric(server, RESTARTS)
            os.kill(engine_pid(server), signal.SIGKILL)
            killed = time.monotonic()
            while metric(server, RESTARTS) == restarts:
                assert time.monotonic() - killed < PATIENCE_S, "the kill went unnoticed"
            while server.get("/ready").status_code != 200:
                assert server.get("/health").status_code == 200
                time.sleep(0.05)
            recovery_s = time.monotonic() - killed
        return [each.result() for each in running], recovery_s


def open_files(server: LiveServer) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


@pytest.fixture(scope="module")
def model(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shallow(smollm2_path, LAYERS, tmp_path_factory.mktemp("model") / "shallow.gguf")


@pytest.fixture(params=[False, True], ids=["errors", "resumed"])
def resumes(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def server(model: Path, tmp_path: Path, resumes: bool) -> Iterator[LiveServer]:
    flags = ("--max-sequences", str(STREAMS), *(("--resume",) if resumes else ()))
    with LiveServer(serve_command(model, *flags), tmp_path / "log") as server:
        yield server


@pytest.mark.timeout(1800)
def test_each_client_is_told_or_served_and_the_service_comes_back(
    server: LiveServer, resumes: bool
) -> None:
    undisturbed, _ = run_streams(server, kill=False)
    assert {error for _, error in undisturbed} == {None}
    files = open_files(server)
    recoveries = []
    for _ in range(KILLS):
        answers, recovery_s = run_streams(server, kill=True)
        recoveries.append(recovery_s)
        for (text, error), (whole, _) in zip(answers, undisturbed, strict=True):
            if resumes:
                assert (text, error) == (whole, None)
            elif error is None:
                assert text == whole  # it was through before
            else:
                assert whole.startswith(text)
                assert error["code"] == "engine_died"
        if not resumes:
            assert any(error for _, error in answers)
    print(f"ready again after {min(recoveries):.1f} to {max(recoveries):.1f} s")
    assert run_streams(server, kill=False)[0] == undisturbed
    assert metric(server, "rocmforge_kv_cache_usage_perc") == 0
    assert metric(server, RESTARTS) == KILLS
    deadline = time.monotonic() + PATIENCE_S
    while open_files(server) > files:  # connections of clients that have just left
        assert time.monotonic() < deadline, f"{open_files(server) - files} files more than before"
        time.sleep(0.05)
