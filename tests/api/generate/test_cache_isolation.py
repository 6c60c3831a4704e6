"""What one API key has sent can be guessed by no other: `cached_tokens` tells nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.live import live_server
from tests.support.processes.server import LiveServer

ALICE, BOB = "the-key-of-alice", "the-key-of-bob"
LONG = " hello world" * 40

# For each endpoint: what its body has beside the prompt, under which name it has that, and where
# its answer says how much of the prompt was cached.
ENDPOINTS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "/v1/completions": ({}, "prompt", ("prompt_tokens_details", "cached_tokens")),
    "/v1/chat/completions": ({}, "messages", ("prompt_tokens_details", "cached_tokens")),
    "/v1/responses": ({}, "input", ("input_tokens_details", "cached_tokens")),
    "/v1/messages": ({"max_tokens": 1}, "messages", ("cache_read_input_tokens",)),
}
SALTED = [path for path in ENDPOINTS if path != "/v1/messages"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    with live_server(log, "--api-key", ALICE, "--api-key", BOB) as server:
        yield server


def cached(server: LiveServer, path: str, key: str, **fields: Any) -> int:
    """How much of a prompt that is this endpoint's own was found."""
    body, name, place = ENDPOINTS[path]
    prompt = path + LONG
    body = body | {name: [{"role": "user", "content": prompt}] if name == "messages" else prompt}
    answer = httpx.post(
        f"{server.url}{path}",
        json={"model": "tiny", **body, **fields},
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    found = answer.json()["usage"]
    for name in place:
        found = found[name]
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("path", ENDPOINTS)
def test_the_right_guess_at_another_keys_prompt_tells_nothing(
    server: LiveServer, path: str
) -> None:
    cached(server, path, ALICE)
    assert cached(server, path, ALICE) > 32
    assert cached(server, path, BOB) == 0


@pytest.mark.parametrize("path", SALTED)
def test_a_salt_keeps_users_of_one_key_apart(server: LiveServer, path: str) -> None:
    cached(server, path, ALICE, cache_salt=f"first user of {path}")
    assert cached(server, path, ALICE, cache_salt=f"first user of {path}") > 32
    assert cached(server, path, ALICE, cache_salt=f"second user of {path}") == 0
