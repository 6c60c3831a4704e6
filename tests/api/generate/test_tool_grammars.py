"""The grammar of tools is written once for each key, and again where anything in it differs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from rocmforge.api.generate import tools as api_tools
from rocmforge.api.http.keys import Keyring, given_keys
from rocmforge.api.http.settings import ApiSettings
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model

WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}},
}
OTHER = {"name": "weather", "parameters": {"type": "object", "properties": {"day": {}}}}
NOW = {"name": "now", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[Client]:
    keys = Keyring(given_keys(["alice", "bob"]))
    model = make_model(engine, declared_context=1 << 20)
    with TestClient(build_app(model, ApiSettings(), keys)) as client:
        yield client


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The grammars that were written for answers with or without calls."""
    seen: list[str] = []
    write = api_tools._written_grammar

    def noting(*arguments: Any) -> str:
        seen.append(write(*arguments))
        return seen[-1]

    monkeypatch.setattr(api_tools, "_written_grammar", noting)
    return seen


def ask(client: Client, *functions: dict[str, Any], key: str = "alice", **fields: Any) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 1,
        "tools": [{"type": "function", "function": function} for function in functions],
        **fields,
    }
    headers = {"authorization": f"Bearer {key}"}
    answer = client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text


def test_the_grammar_of_the_same_tools_is_written_once(
    client: Client, engine: FakeEngine, written: list[str]
) -> None:
    for content in ("hello", "and now?"):
        ask(client, WEATHER, NOW, messages=[{"role": "user", "content": content}])
    assert len(written) == 1
    assert [each.sampling.grammar for each in engine.submitted] == 2 * written


@pytest.mark.parametrize(
    ("functions", "fields"),
    [
        ([WEATHER], {}),
        ([NOW, WEATHER], {}),
        ([OTHER, NOW], {}),
        ([WEATHER | {"strict": True}, NOW], {}),
        ([WEATHER, NOW], {"parallel_tool_calls": False}),
        ([WEATHER, NOW], {"cache_salt": "mine"}),
        ([WEATHER, NOW], {"key": "bob"}),
    ],
)
def test_other_tools_other_rules_and_other_keys_find_nothing(
    functions: list[dict[str, Any]],
    fields: dict[str, Any],
    client: Client,
    engine: FakeEngine,
    written: list[str],
) -> None:
    ask(client, WEATHER, NOW)
    ask(client, *functions, **fields)
    assert len(written) == 2
    assert [each.sampling.grammar for each in engine.submitted] == written
