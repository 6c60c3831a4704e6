"""An application in this process, on an engine that follows a script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from rocmforge.api.http.settings import ApiSettings
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.api.live import live_server
from tests.support.processes.server import LiveServer

Client = TestClient[Litestar]


@pytest.fixture
def engine() -> FakeEngine:
    """Says "hello world" to everything, until a test gives it another script."""
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[Client]:
    """A client of the application with default settings."""
    app = build_app(make_model(engine), ApiSettings(max_body_bytes=100_000))
    with TestClient(app) as client:
        yield client


@pytest.fixture
def chat(client: Client) -> Any:
    """Posts a chat completion; keyword arguments become fields of the body."""

    def post(**fields: Any) -> Any:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], **fields}
        return client.post("/v1/chat/completions", json=body)

    return post


@pytest.fixture
def complete(client: Client) -> Any:
    """Posts a text completion; keyword arguments become fields of the body."""

    def post(**fields: Any) -> Any:
        return client.post("/v1/completions", json={"model": "tiny", "prompt": "hello", **fields})

    return post


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server process that answers at once."""
    with live_server(tmp_path_factory.mktemp("live") / "log") as server:
        yield server


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server process that needs 20 ms a token, and lets 8 requests wait for 16 that run."""
    log = tmp_path_factory.mktemp("slow") / "log"
    limits = ("--max-sequences", "16", "--max-waiting", "8")
    with live_server(log, "--backend", "create_slow", *limits) as server:
        yield server
