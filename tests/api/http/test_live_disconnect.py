"""Clients that vanish at random points under load, over real sockets."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress

import pytest

from tests.api.live import assert_settles
from tests.support.processes.server import LiveServer

CLIENTS = 200
AT_ONCE = 20


async def vanish(port: int, chance: random.Random) -> None:
    """Sends a request of some kind, reads some of the answer or waits a little, and leaves."""
    stream = chance.random() < 0.5
    body = json.dumps(
        {
            "model": "tiny",
            "prompt": [chance.randrange(256) for _ in range(chance.randrange(1, 400))],
            "max_tokens": 200,
            "ignore_eos": True,
            "stream": stream,
            "n": chance.choice([1, 1, 3]),
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    request = head + body
    is_whole = chance.random() < 0.9
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request if is_whole else request[: chance.randrange(len(request))])
        await writer.drain()
        if stream and is_whole:
            for _ in range(chance.randrange(6)):
                await reader.read(300)
        else:
            await asyncio.sleep(chance.random() * 0.2)  # when it leaves, not a synchronisation
        if chance.random() < 0.5:
            writer.transport.abort()
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("seed", [1, 2])
def test_after_two_hundred_disconnects_no_block_is_held(slow: LiveServer, seed: int) -> None:
    chance = random.Random(seed)

    async def crowd() -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with gate:
                await vanish(slow.port, chance)

        await asyncio.gather(*(one() for _ in range(CLIENTS)))

    asyncio.run(crowd())
    assert_settles(slow)
    assert "Traceback" not in slow.log
