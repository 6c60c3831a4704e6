"""Answers in a form that the client asked for, from a server whose model knows no form."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.api.live import assert_settles
from tests.support.files.json_schemas import RandomSchemas, with_recursion
from tests.support.processes.server import LiveServer

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 1.5}
NUM_SCHEMAS = 32


@pytest.fixture
def sdk(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


def post(live: LiveServer, **fields: Any) -> tuple[str, str]:
    """Content and finish reason."""
    response = httpx.post(f"{live.url}/v1/chat/completions", json=BODY | fields, timeout=60)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


async def complete_all(url: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first choices, in order; all requests at once."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        tasks = [client.post(f"{url}/v1/chat/completions", json=body) for body in bodies]
        answers = await asyncio.gather(*tasks)
    assert {(a.status_code, a.text) for a in answers if a.status_code != 200} == set()
    return [answer.json()["choices"][0] for answer in answers]


def test_every_finished_answer_validates_against_its_random_schema(live: LiveServer) -> None:
    schemas = [RandomSchemas(seed).schema() for seed in range(NUM_SCHEMAS)]
    schemas[::8] = [with_recursion(schema) for schema in schemas[::8]]
    bodies = [
        BODY | {"response_format": json_schema(schema), "seed": i, "max_tokens": 600}
        for i, schema in enumerate(schemas)
    ]
    choices = asyncio.run(complete_all(live.url, bodies))
    finished = 0
    for schema, choice in zip(schemas, choices, strict=True):
        if choice["finish_reason"] == "stop":
            finished += 1
            jsonschema.Draft202012Validator(schema).validate(
                json.loads(choice["message"]["content"])
            )
    assert finished >= 28
    assert_settles(live)


def test_other_streams_say_what_they_say_alone(live: LiveServer) -> None:
    free = [
        {"model": "tiny", "messages": [{"role": "user", "content": f"question {i}"}]}
        | {"temperature": 0 if i % 2 else 1.0, "seed": i, "max_tokens": 40}
        for i in range(16)
    ]
    alone = [asyncio.run(complete_all(live.url, [body]))[0] for body in free]
    schema = RandomSchemas(1).object(2)
    constrained = [
        BODY | {"response_format": json_schema(schema), "seed": i, "max_tokens": 300}
        for i in range(32)
    ]
    together = asyncio.run(complete_all(live.url, constrained + free))
    assert together[32:] == alone
    validator = jsonschema.Draft202012Validator(schema)
    for choice in together[:32]:
        assert choice["finish_reason"] == "stop"
        validator.validate(json.loads(choice["message"]["content"]))


def test_a_constrained_answer_is_the_same_alone_and_in_a_crowd(live: LiveServer) -> None:
    bodies = [BODY | {"guided_regex": "[a-z]{5,40}", "seed": i} for i in range(8)]
    alone = [asyncio.run(complete_all(live.url, [body]))[0] for body in bodies]
    assert asyncio.run(complete_all(live.url, bodies)) == alone
    assert len({choice["message"]["content"] for choice in alone}) > 1


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_choice": ["red", "dark red", 'bl"ue\n']},
        {"structured_outputs": {"choice": ["red", "dark red", 'bl"ue\n']}},
    ],
)
def test_choices(live: LiveServer, fields: dict[str, Any]) -> None:
    seen = {post(live, **fields, seed=seed) for seed in range(12)}
    assert seen <= {("red", "stop"), ("dark red", "stop"), ('bl"ue\n', "stop")}
    assert len(seen) > 1


@pytest.mark.parametrize(
    "fields",
    [{"guided_regex": r"[a-f]{3}:\d+!"}, {"structured_outputs": {"regex": r"[a-f]{3}:\d+!"}}],
)
def test_regular_expressions(live: LiveServer, fields: dict[str, Any]) -> None:
    content, reason = post(live, **fields)
    assert reason == "stop"
    assert re.fullmatch(r"[a-f]{3}:\d+!", content)


def test_lark_grammars(live: LiveServer) -> None:
    lark = 'start: sum\nsum: NUMBER ("+" NUMBER)+\nNUMBER: /[1-9][0-9]?/'
    content, reason = post(live, guided_grammar=lark)
    assert reason == "stop"
    assert re.fullmatch(r"[1-9]\d?(\+[1-9]\d?)+", content)


def test_a_json_object(live: LiveServer) -> None:
    schema = {"type": "object", "maxProperties": 0}
    assert json.loads(post(live, guided_json=json.dumps(schema))[0]) == {}
    content, reason = post(live, response_format={"type": "json_object"}, max_tokens=300)
    assert content.startswith("{")
    assert reason == "length" or isinstance(json.loads(content), dict)


def test_a_cut_answer_says_so(live: LiveServer) -> None:
    content, reason = post(live, guided_regex="a{50}", max_tokens=10)
    assert (content, reason) == ("a" * 10, "length")


def test_each_choice_of_n_has_its_own_grammar_state(live: LiveServer) -> None:
    body = BODY | {"guided_regex": "[a-z]{3,20};", "n": 4}
    response = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=60)
    contents = [choice["message"]["content"] for choice in response.json()["choices"]]
    assert all(re.fullmatch("[a-z]{3,20};", content) for content in contents)
    assert len(set(contents)) > 1


def test_text_completions_are_constrained_too(live: LiveServer) -> None:
    body = {"model": "tiny", "prompt": ["a", "b"], "guided_choice": ["yes", "no"]}
    response = httpx.post(f"{live.url}/v1/completions", json=body, timeout=60)
    assert {choice["text"] for choice in response.json()["choices"]} <= {"yes", "no"}


class Person(BaseModel):
    age: int
    is_tall: bool | None


def test_the_sdk_parses_a_pydantic_model(sdk: openai.OpenAI) -> None:
    completion = sdk.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Person, seed=3
    )
    assert isinstance(completion.choices[0].message.parsed, Person)


def test_the_sdk_streams_a_pydantic_model(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(
        model="tiny", messages=MESSAGES, response_format=Person, seed=3
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)
