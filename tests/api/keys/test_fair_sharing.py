"""Two keys on one server: whoever floods it leaves the other their share."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import httpx
import openai
import pytest
from litestar.testing import TestClient
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from rocmforge.api.http.keys import Keyring
from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.params import NO_KEY, Share
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.api.keys.test_keys import PROMPT, a_key, bearer
from tests.api.live import live_server
from tests.support.processes.server import LiveServer

PLACES = 4 + 60  # of the live server, running and waiting
FLOOD = 300


def test_the_engine_is_told_an_index_and_a_weight(engine: FakeEngine) -> None:
    keys = Keyring([a_key("alice"), a_key("bob", weight=2.0)])
    with TestClient(build_app(make_model(engine), ApiSettings(), keys)) as client:
        for name in ("bob", "alice", "bob"):
            client.post("/v1/completions", json=PROMPT, headers=bearer(name))
        keys.replace([a_key("bob", weight=4.0)])
        keys.replace([a_key("carol"), a_key("alice"), a_key("bob", weight=4.0)])
        for name in ("carol", "alice", "bob"):
            client.post("/v1/completions", json=PROMPT, headers=bearer(name))
    alice, bob, carol = 1, 2, 3
    shares = [structs.replace(request.share, tenant=b"") for request in engine.submitted]
    assert shares == [
        *(Share(key=bob, weight=2.0), Share(key=alice), Share(key=bob, weight=2.0)),
        *(Share(key=carol), Share(key=alice), Share(key=bob, weight=4.0)),
    ]
    owners = {request.share.tenant: request.share.key for request in engine.submitted}
    assert sorted(owners.values()) == [alice, bob, carol], "a tenant is one key's"
    assert all(len(tenant) == 32 for tenant in owners)


def test_without_keys_nobody_is_anybody(engine: FakeEngine) -> None:
    with TestClient(build_app(make_model(engine), ApiSettings())) as client:
        client.post("/v1/completions", json=PROMPT)
    assert [request.share for request in engine.submitted] == [NO_KEY]


def waiting(server: LiveServer, key: str) -> dict[str, float]:
    """Sequences that wait, by key."""
    headers = {"authorization": f"Bearer {key}"}
    text = httpx.get(f"{server.url}/metrics", headers=headers, timeout=60).text
    return {
        sample.labels["key"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "rocmforge_key_requests_waiting"
    }


@pytest.mark.slow
def test_a_flood_of_one_key_keeps_no_other_waiting(tmp_path: Path) -> None:
    arguments = ("--backend", "create_slow", "--max-sequences", "4", "--max-waiting", "60")
    with live_server(
        tmp_path / "log", *arguments, "--api-key", "flooding", "--api-key", "modest"
    ) as server:
        asyncio.run(flood(server))


async def flood(server: LiveServer) -> None:
    """One key sends more than the queue holds; then the other sends one request."""
    answers: Counter[str] = Counter()

    def client(key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)

    async def ask(sdk: openai.AsyncOpenAI) -> None:
        try:
            # So long that most still wait when the last was refused, on a busy machine, too.
            await sdk.completions.create(model="tiny", prompt="hello there", max_tokens=40)
        except openai.RateLimitError:
            answers["refused"] += 1
        else:
            answers["served"] += 1

    async with client("flooding") as flooding, client("modest") as modest:
        tasks = [asyncio.create_task(ask(flooding)) for _ in range(FLOOD)]
        # However long it takes to send them all: the rest of them has a place.
        while answers.total() < FLOOD - PLACES:  # noqa: ASYNC110 - a counter is polled
            await asyncio.sleep(0.01)
        assert waiting(server, "modest")["api-key-1"] > PLACES / 4
        before = answers["served"]
        await modest.completions.create(model="tiny", prompt="hello there", max_tokens=20)
        assert answers["served"] - before < PLACES / 2, "the flood was served first"
        assert waiting(server, "modest")["api-key-2"] == 0
        await asyncio.gather(*tasks)
    assert answers["served"] >= PLACES / 2
    assert waiting(server, "modest") == {"api-key-1": 0, "api-key-2": 0}
