"""Whatever a client does to its connection, its sequences end and their blocks come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from litestar import Litestar

from rocmforge.api.app import build_app as build_fleet_app
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.metrics.fleet import FleetMetrics
from rocmforge.engine.ipc.params import GenerateRequest, TokenEvent
from rocmforge.fleet.fleet import Fleet
from tests.api.fake_engine import RUNNER, Batch, FakeEngine, build_app, make_model

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
HELLO = 262


class Connection:
    """One HTTP connection to an application, without a socket."""

    def __init__(
        self,
        app: Litestar,
        body: dict[str, Any],
        *,
        path: str = "/v1/chat/completions",
        read_limit: int = 10**9,
    ) -> None:
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.gone = asyncio.Event()
        self._app = app
        self._path = path
        self.incoming: list[dict[str, Any]] = [
            {"type": "http.request", "body": json.dumps(body).encode()}
        ]
        self._read_limit = read_limit
        self._reads = 0

    async def run(self) -> None:
        """Handles the request to its end."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await self._app(scope, self._receive, self._send)  # type: ignore[arg-type]

    async def _receive(self) -> dict[str, Any]:
        if self.incoming:
            return self.incoming.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.gone.is_set():
            return  # what servers do: sending to nobody returns at once
        self._reads += 1
        if self._reads > self._read_limit:
            await asyncio.Event().wait()  # the socket's buffer is full
        self.sent.put_nowait(message)


def silent(request: GenerateRequest) -> list[Batch]:
    return []


def endless(request: GenerateRequest) -> list[Batch]:
    return [(TokenEvent(request_id=0, token_ids=(HELLO,)),)] * 100_000


def finishing(steps: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await steps

    asyncio.run(bounded())


def make_app(engine: FakeEngine, **settings: Any) -> Litestar:
    return build_app(make_model(engine), ApiSettings(**settings))


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [silent, endless])
def test_a_client_that_leaves_ends_its_sequences(stream: bool, n: int, script: Any) -> None:
    async def steps() -> None:
        engine = FakeEngine(script=script)
        connection = Connection(make_app(engine), BODY | {"stream": stream, "n": n})
        running = asyncio.create_task(connection.run())
        await until(lambda: len(engine.live) == n)
        connection.gone.set()
        await running
        assert engine.live == set()

    finishing(steps())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": "hello"}),
        ("/v1/messages", BODY | {"max_tokens": 2000}),
        ("/v1/embeddings", {"input": ["a", "b"]}),
    ],
)
def test_it_does_on_every_path(path: str, fields: dict[str, Any], stream: bool) -> None:
    async def steps() -> None:
        engine = FakeEngine(script=silent, runner=replace(RUNNER, hidden_size=2))
        body = {"model": "tiny", "stream": stream, **fields}
        connection = Connection(make_app(engine), body, path=path)
        running = asyncio.create_task(connection.run())
        await until(lambda: len(engine.live) == (2 if path.endswith("embeddings") else 1))
        connection.gone.set()
        await running
        assert engine.live == set()

    finishing(steps())


@pytest.mark.parametrize("messages", range(1, 6))
def test_a_client_that_leaves_after_any_message_ends_its_sequence(messages: int) -> None:
    async def steps() -> None:
        engine = FakeEngine(script=endless)
        connection = Connection(make_app(engine), BODY | {"stream": True})
        running = asyncio.create_task(connection.run())
        for _ in range(messages):
            await connection.sent.get()
        connection.gone.set()
        await running
        assert engine.live == set()

    finishing(steps())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_left_before_the_answer_begins_ends_its_sequence(stream: bool) -> None:
    async def steps() -> None:
        engine = FakeEngine(script=silent)
        connection = Connection(make_app(engine), BODY | {"stream": stream})
        connection.gone.set()
        await connection.run()
        assert len(engine.submitted) == 1
        assert engine.live == set()

    finishing(steps())


def test_a_client_that_stops_reading_and_then_leaves_ends_its_sequence() -> None:
    async def steps() -> None:
        engine = FakeEngine(script=endless)
        connection = Connection(make_app(engine), BODY | {"stream": True}, read_limit=3)
        running = asyncio.create_task(connection.run())
        for _ in range(3):
            await connection.sent.get()
        connection.gone.set()
        await running
        assert engine.live == set()

    finishing(steps())


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_gives_up_on_a_request_ends_its_sequence(stream: bool) -> None:
    async def steps() -> None:
        engine = FakeEngine(script=silent)
        running = asyncio.create_task(Connection(make_app(engine), BODY | {"stream": stream}).run())
        await until(lambda: engine.live)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert engine.live == set()

    finishing(steps())


def test_a_client_that_leaves_in_the_middle_of_its_body_starts_nothing() -> None:
    async def steps() -> None:
        engine = FakeEngine()
        connection = Connection(make_app(engine), BODY)
        connection.incoming[0]["more_body"] = True
        connection.gone.set()
        await connection.run()
        assert engine.submitted == []

    finishing(steps())


def test_a_long_prefill_is_bridged_with_comments() -> None:
    async def steps() -> None:
        engine = FakeEngine(script=silent)
        app = make_app(engine, keep_alive_s=0.001)
        connection = Connection(app, BODY | {"stream": True})
        running = asyncio.create_task(connection.run())
        start = await connection.sent.get()
        assert start["type"] == "http.response.start"
        for _ in range(3):
            assert (await connection.sent.get())["body"] == b": keep-alive\n\n"
        connection.gone.set()
        await running

    finishing(steps())


def test_an_abandoned_sequence_counts_as_aborted() -> None:
    async def steps() -> None:
        engine = FakeEngine(script=silent)
        fleet = Fleet([make_model(engine)])
        metrics = FleetMetrics(fleet)
        app = build_fleet_app(fleet, ApiSettings(), metrics=metrics)
        connection = Connection(app, BODY | {"stream": True})
        running = asyncio.create_task(connection.run())
        await until(lambda: engine.live)
        connection.gone.set()
        await running
        text, _ = metrics.render("", vllm_names=False)
        assert b'finished_reason="abort",model_name="tiny"} 1.0' in text

    finishing(steps())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_stream_starts_one_task_beside_that_of_its_request_and_no_thread(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would hold up the others of a hundred streams that start at once."""

    async def steps() -> None:
        engine = FakeEngine(script=silent)
        app = make_app(engine)
        connection = Connection(app, BODY | {"stream": True, "max_tokens": 9}, path=path)
        loop, tasks = asyncio.get_running_loop(), []

        def counted(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
            tasks.append(asyncio.Task(work, loop=loop, **options))
            return tasks[-1]

        monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "run_in_executor", None)
        loop.set_task_factory(counted)
        running = asyncio.create_task(connection.run())
        await until(lambda: engine.live)
        await connection.sent.get()
        connection.gone.set()
        await running
        assert len(tasks) == 2
        assert engine.live == set()

    finishing(steps())
