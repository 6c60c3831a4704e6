"""A gpt-oss of random weights writes calls, and every one of them is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest

from rocmforge.text.tool_calls.harmony import MARKS
from tests.api import harmony
from tests.support.models.speaking import write_speaking
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.slow

CHOICES = 12
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "code": {"type": "string", "maxLength": 40},
    },
    "required": ["city"],
    "additionalProperties": False,
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": WEATHER, "now": EMPTY}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
# Else the model would hardly ever end a message: it has a thousand tokens.
LIKELY = {"<|end|>": 9, "<|channel|>": 2, "<|return|>": 6, "<|call|>": 6}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("harmony")
    keys = harmony.metadata()
    keys["tokenizer.ggml.token_type"] = np.array(keys["tokenizer.ggml.token_type"], np.int32)
    model = write_speaking(folder, "gpt-oss", keys)
    limits = ["--max-context", "1024", "--max-sequences", "16", "--backend", "reference"]
    command = [
        "-m",
        "rocmforge",
        "serve",
        str(model),
        "--port",
        "{port}",
        "--served-model-name",
        "tiny",
    ]
    with LiveServer([*command, *limits], folder / "log") as running:
        yield running


def called(server: LiveServer, seed: int, **fields: Any) -> list[dict[str, Any]]:
    """The choices of one request."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "tools": TOOLS,
        "n": CHOICES,
        "seed": seed,
        "temperature": 1.2,
        "max_tokens": 200,
        "logit_bias": {harmony.mark(mark): bias for mark, bias in LIKELY.items()},
        **fields,
    }
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


def count_whole(choices: list[dict[str, Any]]) -> int:
    """How many choices are a whole call; whatever is whole has to fit its schema."""
    count = 0
    for choice in choices:
        calls = choice["message"].get("tool_calls", [])
        if choice["finish_reason"] == "length":
            continue  # cut
        assert (choice["finish_reason"] == "tool_calls") == bool(calls)
        for call in calls:
            function = call["function"]
            jsonschema.validate(json.loads(function["arguments"]), SCHEMAS[function["name"]])
            count += 1
    return count


def test_calls_that_must_be_made_are_whole(server: LiveServer) -> None:
    assert count_whole(called(server, 1, tool_choice="required")) > CHOICES // 2


def test_calls_by_choice_are_whole_too(server: LiveServer) -> None:
    assert count_whole(called(server, 2)) > 0


def test_answers_that_nothing_holds_are_answers(server: LiveServer) -> None:
    """`min_tokens` leaves the model free: it writes marks and text as they come."""
    bias = {harmony.mark(mark): 8 for mark in MARKS}
    choices = called(server, 3, min_tokens=1, logit_bias=bias)
    assert len(choices) == CHOICES
