"""LoRA adapters as models: names, what the engine is told, what answers say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from rocmforge.api.http.settings import ApiSettings
from tests.api.conftest import Client
from tests.api.endpoints.test_embeddings import EMBEDDING_RUNNER, embeds
from tests.api.fake_engine import FakeEngine, build_app, make_model

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5},
}


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[Client]:
    """A client of a server with two adapters."""
    model = make_model(engine, aliases=("alias",), adapters=("sql", "org/poet"))
    with TestClient(build_app(model, ApiSettings())) as client:
        yield client


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("name", "adapter", "answers_as"),
    [
        ("tiny", -1, "tiny"),
        ("alias", -1, "tiny"),
        ("sql", 0, "sql"),
        ("tiny:sql", 0, "sql"),
        ("alias:org/poet", 1, "org/poet"),
    ],
)
def test_a_name_chooses_the_adapter(
    path: str, name: str, adapter: int, answers_as: str, client: Client, engine: FakeEngine
) -> None:
    response = client.post(path, json={"model": name, **BODIES[path]})
    assert response.status_code == 200, response.text
    assert response.json()["model"] == answers_as
    assert [submitted.sampling.adapter for submitted in engine.submitted] == [adapter]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", ["poet", "tiny:poet", "sql:tiny", "other:sql", "tiny:"])
def test_an_adapter_that_is_not_there_is_a_missing_model(
    path: str, name: str, client: Client, engine: FakeEngine
) -> None:
    response = client.post(path, json={"model": name, **BODIES[path]})
    assert response.status_code == 404
    assert f"{name!r} does not exist. Available: tiny, alias, sql, org/poet." in response.text
    assert not engine.submitted


def test_adapters_are_listed_with_their_parent(client: Client) -> None:
    cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
    assert list(cards) == ["tiny", "alias", "sql", "org/poet"]
    assert [card["parent"] for card in cards.values()] == [None, None, "tiny", "tiny"]
    assert [card["root"] for card in cards.values()] == ["tiny", "tiny", "sql", "org/poet"]


@pytest.mark.parametrize("name", ["org/poet", "tiny:org/poet"])
def test_an_adapter_can_be_looked_up(name: str, client: Client) -> None:
    card = client.get(f"/v1/models/{name}").json()
    assert (card["id"], card["root"], card["parent"]) == (name, "org/poet", "tiny")


def test_an_embedding_comes_from_the_adapter(client: Client, engine: FakeEngine) -> None:
    engine.runner = EMBEDDING_RUNNER
    engine.script = embeds()
    response = client.post("/v1/embeddings", json={"model": "sql", "input": "hello"})
    assert response.json()["model"] == "sql"
    assert [submitted.sampling.adapter for submitted in engine.submitted] == [0]
