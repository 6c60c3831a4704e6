"""Speculative decoding as a client sees it: the same answers, and figures in the metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine
from tests.api.live import assert_settles, live_server, metric
from tests.support.server import LiveServer

# Under this grammar guesses from the answer so far are often right.
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "guided_regex": "((ab|ba|c)d){40}!",
    "max_tokens": 400,
    "logprobs": True,
}


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that drafts unless a request says otherwise."""
    log = tmp_path_factory.mktemp("drafting") / "log"
    with live_server(log, "--prompt-lookup-tokens", "6") as server:
        yield server


def choice(server: LiveServer, **fields: Any) -> Any:
    response = httpx.post(f"{server.url}/v1/chat/completions", json=BODY | fields, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def test_answers_are_those_without_drafts(drafting: LiveServer) -> None:
    for seed in range(6):
        without = choice(drafting, seed=seed, prompt_lookup_num_tokens=0)
        before = metric(drafting, "rocmforge_spec_decode_num_accepted_tokens_total")
        assert choice(drafting, seed=seed) == without
        assert choice(drafting, seed=seed, prompt_lookup_num_tokens=3) == without
    assert metric(drafting, "rocmforge_spec_decode_num_accepted_tokens_total") > before
    drafted = metric(drafting, "rocmforge_spec_decode_num_draft_tokens_total")
    assert drafted >= metric(drafting, "rocmforge_spec_decode_num_accepted_tokens_total")
    assert_settles(drafting)


def test_a_stream_says_the_same_and_counts_every_token(drafting: LiveServer) -> None:
    plain = choice(drafting, seed=1)
    body = BODY | {"seed": 1, "stream": True, "stream_options": {"include_usage": True}}
    text, tokens, usage = "", 0, None
    with httpx.stream("POST", f"{drafting.url}/v1/chat/completions", json=body) as response:
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
