"""Speculative decoding as a client sees it: the same answers, and figures in the metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from litestar.testing import TestClient
from openai import OpenAI

from rocmforge.api.http.settings import ApiSettings
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.api.live import assert_settles, live_server, metric
from tests.support.processes.server import LiveServer

# Under this grammar draft tokens from the answer so far are often accepted.
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "guided_regex": "((ab|ba|c)d){40}!",
    "max_tokens": 400,
    "logprobs": True,
}


TALK: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 100,
    "extra_body": {"ignore_eos": True},
}
DRAFTED = "rocmforge_spec_decode_num_draft_tokens_total"
ACCEPTED = "rocmforge_spec_decode_num_accepted_tokens_total"


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that drafts unless a request says otherwise."""
    log = tmp_path_factory.mktemp("drafting") / "log"
    with live_server(log, "--prompt-lookup-tokens", "6", "--backend", "create_costly") as server:
        yield server


@pytest.fixture(scope="module")
def with_draft_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with a draft model."""
    log = tmp_path_factory.mktemp("draft") / "log"
    with live_server(log, "--draft-tokens", "4", "--backend", "create_costly") as server:
        yield server


def choice(server: LiveServer, **fields: Any) -> Any:
    response = httpx.post(f"{server.url}/v1/chat/completions", json=BODY | fields, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def test_answers_are_those_without_drafts(drafting: LiveServer) -> None:
    for seed in range(6):
        without = choice(drafting, seed=seed, prompt_lookup_num_tokens=0)
        before = metric(drafting, ACCEPTED, method="prompt_lookup")
        assert choice(drafting, seed=seed) == without
        assert choice(drafting, seed=seed, prompt_lookup_num_tokens=3) == without
    accepted = metric(drafting, ACCEPTED, method="prompt_lookup")
    assert before < accepted <= metric(drafting, DRAFTED, method="prompt_lookup")
    assert metric(drafting, DRAFTED, method="draft_model") == 0
    assert_settles(drafting)


@pytest.fixture
def sdk(with_draft_model: LiveServer) -> Iterator[OpenAI]:
    """The official SDK."""
    url = f"{with_draft_model.url}/v1"
    with OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        yield client


def test_a_draft_model_changes_no_answer_whoever_asks(
    with_draft_model: LiveServer, sdk: OpenAI
) -> None:
    """Streaming and not, several at once, ended early and cancelled."""

    def ask(**fields: Any) -> list[str | None]:
        answer = sdk.chat.completions.create(**TALK | fields)
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= TALK["max_tokens"] * len(answer.choices)
        return [choice.message.content for choice in answer.choices]

    for fields in ({"temperature": 0}, {"seed": 1}, {"seed": 2, "n": 3}, {"seed": 3, "stop": "a"}):
        without = ask(**fields, extra_body={"num_assistant_tokens": 0, "ignore_eos": True})
        assert ask(**fields) == without
        assert ask(**fields, extra_body={"num_assistant_tokens": 2, "ignore_eos": True}) == without
    (plain,) = ask(seed=5)
    parts = list(sdk.chat.completions.create(**TALK, seed=5, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == plain
    with sdk.chat.completions.create(**TALK, seed=5, stream=True) as stream:
        next(iter(stream))
    drafted = metric(with_draft_model, DRAFTED, method="draft_model")
    assert drafted / 2 < metric(with_draft_model, ACCEPTED, method="draft_model") < drafted
    assert metric(with_draft_model, "vllm:spec_decode_num_drafts_total", method="draft_model") > 0
    assert metric(with_draft_model, "rocmforge_draft_model_seconds_total") > 0
    assert_settles(with_draft_model)


def test_draft_tokens_under_a_grammar_change_no_answer(with_draft_model: LiveServer) -> None:
    for seed in range(3):
        without = choice(with_draft_model, seed=seed, num_assistant_tokens=0)
        assert choice(with_draft_model, seed=seed) == without
    assert_settles(with_draft_model)


def test_a_stream_says_the_same_and_counts_every_token(drafting: LiveServer) -> None:
    plain = choice(drafting, seed=1)
    body = BODY | {"seed": 1, "stream": True, "stream_options": {"include_usage": True}}
    text, tokens, usage = "", 0, None
    url = f"{drafting.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            for part in chunk["choices"]:
                text += part["delta"].get("content") or ""
                tokens += len((part["logprobs"] or {}).get("content") or ())
            usage = chunk["usage"] or usage
    assert text == plain["message"]["content"]
    assert usage is not None
    assert tokens == len(plain["logprobs"]["content"]) == usage["completion_tokens"] - 1


@pytest.mark.parametrize("wrong", [-1, 33, "many"])
def test_a_wrong_number_is_refused(client: Client, engine: FakeEngine, wrong: object) -> None:
    response = client.post("/v1/chat/completions", json=BODY | {"prompt_lookup_num_tokens": wrong})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt_lookup_num_tokens"
    assert engine.submitted == []


def test_asking_for_a_draft_model_that_is_not_there_is_refused(
    client: Client, engine: FakeEngine
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    refused = client.post("/v1/chat/completions", json=body | {"num_assistant_tokens": 4})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "num_assistant_tokens"
    assert engine.submitted == []
    assert client.post("/v1/chat/completions", json=body | {"num_assistant_tokens": 0}).is_success


def test_a_model_with_states_refuses_draft_tokens(engine: FakeEngine) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    model = replace(make_model(engine), checks_drafts=False)
    with TestClient(build_app(model, ApiSettings())) as client:
        refused = client.post("/v1/chat/completions", json=body | {"prompt_lookup_num_tokens": 4})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "prompt_lookup_num_tokens"
        assert engine.submitted == []
        none = body | {"prompt_lookup_num_tokens": 0}
        assert client.post("/v1/chat/completions", json=none).is_success
