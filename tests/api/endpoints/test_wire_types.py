"""Every answer is of OpenAI's own types, to the letter.

The library reads answers leniently. Here they are held to its declarations, which are made from
OpenAI's specification: no wrong type, no field missing, none that they do not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from openai._models import BaseModel
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import TypeAdapter

from rocmforge.errors import (
    ContextLengthExceeded,
    Draining,
    EngineDied,
    EngineError,
    OutOfMemory,
    QueueFull,
)
from tests.api.conftest import Client
from tests.api.endpoints.test_models import COMMENTS, Models
from tests.api.fake_engine import FakeEngine
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
FUNCTION = {"name": "f", "parameters": SCHEMA}
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 400,
    "seed": 3,
}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several": {"n": 2, "max_tokens": 5},
    "log-probabilities": {"logprobs": True, "top_logprobs": 2, "max_tokens": 5},
    "tools": {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
    "form": {"response_format": {"type": "json_schema", "json_schema": FORM}},
    "tier": {"service_tier": "auto", "metadata": {"a": "b"}, "store": False},
}
RESPONSE = {"model": "tiny", "input": "hello", "max_output_tokens": 400, "seed": 3}
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {"max_output_tokens": 5, "instructions": "be brief"},
    "log-probabilities": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "tools": {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
    "named tool": {
        "tools": [{"type": "function", **FUNCTION, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
    },
    "form": {"text": {"format": FORM}},
    "object": {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
    "reasoning": {"reasoning": {"effort": "low", "summary": "auto"}},
    "background": {"background": True, "metadata": {"a": "b"}},
}
# Model cards have vLLM's fields, too, and where the model is in its life.
CARD = {
    *("root", "parent", "max_model_len", "aliases", "capabilities", "sampling"),
    *("state", "status"),
}
# OpenAI sends these, of responses, of calls that are done, and of tokens in deltas, although its
# library does not declare them.
UNDECLARED = {"store", "name", "bytes"}


adapter = cache(TypeAdapter)  # to make one of all the events of a stream takes 0.1 s


def strictly(kind: Any, body: str | bytes, additions: frozenset[str] = frozenset()) -> Any:
    """The body as that type."""
    value = adapter(kind).validate_json(body, strict=True)
    assert set(unknown_fields(value)) <= additions | UNDECLARED
    return value


def unknown_fields(value: Any) -> Iterator[str]:
    """Names of fields that no declaration has, however deep they are."""
    if isinstance(value, BaseModel):
        yield from value.model_extra or {}
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from unknown_fields(item)


def data_of(answer: httpx.Response) -> list[str]:
    """The data of a stream's events, but for `[DONE]`."""
    assert answer.status_code == 200, answer.text
    lines = answer.text.splitlines()
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [line for line in found if line != "[DONE]"]


@pytest.fixture
def http(live: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=60) as client:
        yield client


@pytest.mark.parametrize("kind", CHATS)
def test_chat(http: httpx.Client, kind: str) -> None:
    body = CHAT | CHATS[kind]
    answer = http.post("/v1/chat/completions", json=body)
    completion = strictly(ChatCompletion, answer.content)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    stream = http.post("/v1/chat/completions", json=body)
    chunks = [strictly(ChatCompletionChunk, line) for line in data_of(stream)]
    assert chunks[-1].usage.completion_tokens == completion.usage.completion_tokens
    tier = "default" if "service_tier" in body else None
    assert {completion.service_tier, *(chunk.service_tier for chunk in chunks)} == {tier}


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 2}], ids=str)
def test_completions(http: httpx.Client, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 5, "seed": 3, **fields}
    strictly(Completion, http.post("/v1/completions", json=body).content)
    *_, last = data_of(http.post("/v1/completions", json=body | {"stream": True, "n": 1}))
    strictly(Completion, last)  # those before have no reason for an end, which the type wants


@pytest.mark.parametrize("kind", RESPONSES)
def test_responses(http: httpx.Client, kind: str) -> None:
    body = RESPONSE | RESPONSES[kind]
    response = strictly(Response, http.post("/v1/responses", json=body).content)
    strictly(Response, http.get(f"/v1/responses/{response.id}").content)
    strictly(ResponseItemList, http.get(f"/v1/responses/{response.id}/input_items").content)
    stream = http.post("/v1/responses", json=body | {"stream": True})
    events = [strictly(ResponseStreamEvent, line) for line in data_of(stream)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_models_and_embeddings(http: httpx.Client) -> None:
    strictly(Model, http.get("/v1/models/tiny").content, frozenset(CARD))
    body = {"model": "tiny", "input": ["hello", "world"]}
    strictly(CreateEmbeddingResponse, http.post("/v1/embeddings", json=body).content)


@pytest.mark.parametrize(
    "error",
    [
        EngineError("planted"),
        EngineDied("planted"),
        QueueFull("planted", retry_after_s=1),
        Draining("planted", retry_after_s=1),
        ContextLengthExceeded(limit=1, prompt_tokens=2, max_tokens=1, param="input"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_responses_that_fail(client: Client, engine: FakeEngine, error: Exception) -> None:
    engine.script = lambda request: [error]
    stream = client.post("/v1/responses", json=RESPONSE | {"stream": True})
    *_, last = [strictly(ResponseStreamEvent, line) for line in data_of(stream)]
    assert last.type == "response.failed"
    begun = client.post("/v1/responses", json=RESPONSE | {"background": True})
    stored = client.get(f"/v1/responses/{begun.json()['id']}")
    assert strictly(Response, stored.content).status == "failed"


def test_a_stream_that_waits_in_vain() -> None:
    models = Models(keep_alive_s=0.01)
    models.failure = OutOfMemory("It needs 9 GiB.")
    models.opens_after = COMMENTS
    with models.client as client:
        body = RESPONSE | {"model": "org/lazy", "stream": True}
        (line,) = data_of(client.post("/v1/responses", json=body))
    event = strictly(ResponseStreamEvent, line)
    assert (event.type, event.code, event.sequence_number) == ("error", "model_unavailable", 0)


def test_errors(client: Client) -> None:
    body = client.post("/v1/responses", json={"model": "tiny"}).json()
    assert list(body) == ["error"]
    ErrorObject.model_validate(body["error"], strict=True)
