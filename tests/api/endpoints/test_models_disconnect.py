"""Clients that leave while their model is being loaded, or just after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocmforge.fleet.entry import ModelState
from tests.api.endpoints.test_models import Models
from tests.api.http.test_disconnect import Connection, finishing, silent, until

BODY: dict[str, Any] = {"model": "org/lazy", "messages": [{"role": "user", "content": "hello"}]}


def comments(connection: Connection) -> int:
    """Parts that have been sent, besides the head."""
    return max(0, connection.sent.qsize() - 1)


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_waits_no_longer_and_the_load_goes_on(stream: bool) -> None:
    models = Models(keep_alive_s=0.01)
    entry = models.fleet.find("org/lazy").entry

    async def steps() -> None:
        connection = Connection(models.client.app, BODY | {"stream": stream})
        running = asyncio.create_task(connection.run())
        await until(lambda: entry.num_waiting and (comments(connection) > 2 or not stream))
        connection.gone.set()
        await running
        assert entry.num_waiting == 0
        models.gate.set()
        await until(lambda: entry.state is ModelState.READY)
        assert entry.users == 0
        await models.fleet.stop()

    finishing(steps())


def test_a_stream_that_came_late_is_left_like_any_other() -> None:
    models = Models(keep_alive_s=0.01)
    entry = models.fleet.find("org/lazy").entry

    async def steps() -> None:
        connection = Connection(models.client.app, BODY | {"stream": True})
        running = asyncio.create_task(connection.run())
        await until(lambda: comments(connection) > 2)
        models.engines[0].script = silent
        models.gate.set()
        await until(lambda: models.engines[0].live)
        assert entry.users == 1
        connection.gone.set()
        await running
        assert not models.engines[0].live
        assert entry.users == 0
        await models.fleet.stop()

    finishing(steps())


def test_the_end_of_the_server_is_told_to_streams_that_wait() -> None:
    models = Models(keep_alive_s=0.01)

    async def steps() -> None:
        connection = Connection(models.client.app, BODY | {"stream": True})
        running = asyncio.create_task(connection.run())
        await until(lambda: comments(connection) > 2)
        assert await models.fleet.drain(1.0)
        await running
        parts = [connection.sent.get_nowait() for _ in range(connection.sent.qsize())]
        assert b"shutting_down" in parts[-1]["body"]
        assert not parts[-1]["more_body"]
        models.gate.set()
        await models.fleet.stop()

    finishing(steps())
