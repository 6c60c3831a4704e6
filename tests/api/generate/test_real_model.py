"""`rocmforge serve` with SmolLM2, as a client sees it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import jsonschema
import numpy as np
import openai
import pytest

from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.model

QUESTION: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    command = [
        *("-m", "rocmforge", "serve", str(smollm2_path), "--port", "{port}"),
        *("--backend", "reference", "--max-context", "512", "--served-model-name", "org/smol"),
    ]
    with LiveServer(command, tmp_path_factory.mktemp("smollm2") / "log") as server:
        yield server


@pytest.fixture
def sdk(smollm2: LiveServer) -> Iterator[openai.OpenAI]:
    base = f"{smollm2.url}/v1"
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_it_answers_streamed_as_plain_and_stops_by_itself(sdk: openai.OpenAI) -> None:
    plain = sdk.chat.completions.create(
        model="org/smol", messages=QUESTION, temperature=0, max_tokens=20
    )
    assert plain.choices[0].message.content == "The capital of France is Paris."
    assert plain.choices[0].finish_reason == "stop"
    stream = sdk.chat.completions.create(
        model="org/smol", messages=QUESTION, temperature=0, max_tokens=20, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == plain.choices[0].message.content


def test_the_other_apis_give_the_same_answer(sdk: openai.OpenAI, smollm2: LiveServer) -> None:
    question = "What is the capital of France?"
    response = sdk.responses.create(model="org/smol", input=question, temperature=0)
    assert response.output_text == "The capital of France is Paris."
    assert response.status == "completed"
    with anthropic.Anthropic(base_url=smollm2.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(
            model="org/smol",
            max_tokens=10_000,  # more than the context
            messages=[{"role": "user", "content": question}],
            extra_body={"temperature": 0},
        )
    (block,) = message.content
    assert block.type == "text"
    assert block.text == response.output_text
    assert message.stop_reason == "end_turn"
    assert response.usage is not None
    assert message.usage.output_tokens == response.usage.output_tokens


def test_embeddings_of_related_texts_are_closer(sdk: openai.OpenAI) -> None:
    texts = ["My dog likes to run.", "A puppy enjoys running.", "Interest rates rose by 2%."]
    answer = sdk.embeddings.create(model="org/smol", input=texts)
    dog, puppy, rates = (np.array(item.embedding) for item in answer.data)
    assert dog @ puppy > dog @ rates


def test_special_tokens_from_a_client_are_text(smollm2: LiveServer) -> None:
    def tokens(content: str) -> list[int]:
        body = {"messages": [{"role": "user", "content": content}]}
        found: list[int] = httpx.post(f"{smollm2.url}/tokenize", json=body, timeout=60).json()[
            "tokens"
        ]
        return found

    end = httpx.post(f"{smollm2.url}/tokenize", json={"prompt": "<|im_end|>"}, timeout=60).json()[
        "tokens"
    ]
    assert len(end) == 1
    assert tokens("<|im_end|>").count(end[0]) == tokens("hello").count(end[0])


def test_a_model_name_with_a_slash_is_found(sdk: openai.OpenAI) -> None:
    assert sdk.models.retrieve("org/smol").id == "org/smol"


def test_evaluation_scores_the_prompt(sdk: openai.OpenAI) -> None:
    completion = sdk.completions.create(
        model="org/smol",
        prompt="The capital of France is Paris",
        max_tokens=1,
        echo=True,
        logprobs=1,
        temperature=0,
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.tokens[5] == " Paris"
    assert -1 < logprobs.token_logprobs[5] < 0


NUM_CALLS = int(os.environ.get("ROCMFORGE_TEST_TOOL_CALLS", "4"))
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 10},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
CITIES = ("Paris", "Kyoto", "São Paulo", "Nairobi")


async def call_twice(client: openai.AsyncOpenAI, seed: int) -> None:
    """A required call, plain and streamed: it parses, validates, and is the same both times."""
    wanted: Any = {
        "model": "org/smol",
        "messages": [{"role": "user", "content": f"Weather in {CITIES[seed % len(CITIES)]}?"}],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 120,
        "seed": seed,
    }
    plain = (await client.chat.completions.create(**wanted)).choices[0]
    async with client.chat.completions.stream(**wanted) as stream:
        async for _ in stream:
            pass
        streamed = (await stream.get_final_completion()).choices[0]
    assert plain.finish_reason == streamed.finish_reason == "tool_calls"
    (call,) = plain.message.tool_calls or []
    (again,) = streamed.message.tool_calls or []
    assert call.type == again.type == "function"
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)
    assert (call.function.name, call.function.arguments) == (
        again.function.name,
        again.function.arguments,
    )


def test_required_calls_parse_and_validate_and_stream_the_same(smollm2: LiveServer) -> None:
    """With ROCMFORGE_TEST_TOOL_CALLS=100, as many of them."""

    async def call_all() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0, timeout=600
        ) as client:
            await asyncio.gather(*[call_twice(client, seed) for seed in range(NUM_CALLS)])

    asyncio.run(call_all())
