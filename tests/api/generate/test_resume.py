"""With `resume`, a client does not notice that the engine was killed in the middle of its answer.

That the tokens are the same is shown in tests/unit/engine/test_resume.py; here, that the answer is
taken apart in the same way: thoughts, calls and text of a form go on where they were.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.live import assert_settles, engine_pid, live_server, metric, until
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.slow

NAME = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 40, "maxLength": 60}},
    "required": ["name"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": NAME}}
TOOLS = [{"type": "function", "function": {"name": "call", "parameters": NAME}}]
THOUGHTS = 12  # tokens
REQUESTS: dict[str, dict[str, Any]] = {
    "text": {"thinking_budget": 0, "max_tokens": 40, "ignore_eos": True},
    "schema": {"thinking_budget": 0, "response_format": FORM},
    "calls": {"thinking_budget": 0, "tools": TOOLS, "tool_choice": "required"},
    "thoughts": {"thinking_budget": 30, "max_tokens": 60, "ignore_eos": True},
    "thoughts, then a schema": {"thinking_budget": THOUGHTS, "response_format": FORM},
    "thoughts, then a call": {
        "thinking_budget": THOUGHTS,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "call"}},
    },
}
KILLS = (4, 20)  # after so many events
RESTARTS = "rocmforge_engine_restarts_total"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("resuming") / "log"
    with live_server(log, "--backend", "create_slow", "--resume", "--thinks") as server:
        yield server


@pytest.fixture(scope="module")
def undisturbed(server: LiveServer) -> dict[str, dict[str, Any]]:
    """The answers of each kind, asked for at once: most of the time they wait for steps."""
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        found = pool.map(lambda kind: deltas(server, REQUESTS[kind], lambda count: None), REQUESTS)
        return dict(zip(REQUESTS, map(answer, found), strict=True))


def deltas(server: LiveServer, fields: dict[str, Any], on_event: Callable[[int], None]) -> Any:
    """The choices of all chunks; `on_event` learns how many events there were."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "seed": 7,
        "temperature": 1.2,
        "stream": True,
        "max_tokens": 400,
        **fields,
    }
    found = []
    url = f"{server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                found.append(event["choices"][0])
                on_event(len(found))
    return found


def progress(server: LiveServer) -> float:
    """A number that grows with each step of the engine, and with each request that has ended."""
    return metric(server, "rocmforge_engine_steps_total") + ended(server)


def ended(server: LiveServer) -> float:
    """The requests that have ended."""
    return metric(server, "rocmforge_e2e_request_latency_seconds_count")


def answer(choices: Any) -> dict[str, Any]:
    """What the chunks add up to."""
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    return {
        "thoughts": "".join(c["delta"].get("reasoning_content", "") for c in choices),
        "text": "".join(c["delta"].get("content", "") for c in choices),
        "names": [c["function"]["name"] for c in calls if "name" in c["function"]],
        "arguments": "".join(c["function"]["arguments"] for c in calls),
        "reasons": [c["finish_reason"] for c in choices if c["finish_reason"]],
    }


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_answer_goes_on_where_it_was_twice(
    server: LiveServer, undisturbed: dict[str, dict[str, Any]], kind: str
) -> None:
    restarts, seen, before = metric(server, RESTARTS), [progress(server)], ended(server)

    def kill(count: int) -> None:
        if count not in KILLS:
            return
        # What is read here may have been sent long ago. A new engine that is killed before it gets
        # on takes its requests along. Where it has answered them before we are told that it is
        # there, on a busy machine, nothing is left to get on with, and nothing may be lost.
        until(
            lambda: progress(server) > seen[-1] or ended(server) > before,
            "the engine does not get on",
        )
        os.kill(engine_pid(server), signal.SIGKILL)
        deaths = restarts + KILLS.index(count) + 1
        until(lambda: metric(server, RESTARTS) == deaths, "the kill went unnoticed")
        seen.append(progress(server))

    assert answer(deltas(server, REQUESTS[kind], kill)) == undisturbed[kind]
    assert metric(server, RESTARTS) == restarts + len(KILLS)
    assert_settles(server)


def test_the_answers_are_of_every_kind(undisturbed: dict[str, dict[str, Any]]) -> None:
    assert [bool(undisturbed[kind]["thoughts"]) for kind in REQUESTS] == [False] * 3 + [True] * 3
    for kind in ("schema", "thoughts, then a schema"):
        assert 40 <= len(json.loads(undisturbed[kind]["text"])["name"]) <= 60
    for kind in ("calls", "thoughts, then a call"):
        assert set(undisturbed[kind]["names"]) == {"call"}
        assert undisturbed[kind]["reasons"] == ["tool_calls"]
