"""OpenAI's own Python library against a live server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.api.live import assert_settles, live_server, metric, until
from tests.support.processes.server import LiveServer

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "developer", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
]
KEY = "a-key"


@pytest.fixture
def sdk(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def make_async(live: LiveServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


def test_chat(sdk: openai.OpenAI) -> None:
    completion = sdk.chat.completions.create(
        model="tiny", messages=MESSAGES, max_completion_tokens=5, n=2, seed=1
    )
    assert completion.object == "chat.completion"
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert {choice.finish_reason for choice in completion.choices} == {"length"}
    assert completion.choices[0].message.role == "assistant"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 10
    assert completion._request_id == completion.id


def test_chat_stream(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert len({chunk.created for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    assert chunks[-2].choices[0].finish_reason == "length"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    plain = sdk.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=8, temperature=0
    )
    assert text == plain.choices[0].message.content


def test_the_streaming_helper_accumulates_what_we_send(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(
        model="tiny",
        messages=MESSAGES,
        n=2,
        seed=1,  # neither choice is empty
        logprobs=True,
        top_logprobs=2,
        extra_body={"stop_token_ids": list(range(900, 1000))},  # the helper refuses "length"
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert [choice.finish_reason for choice in final.choices] == ["stop", "stop"]
    assert all(choice.message.content for choice in final.choices)


def test_log_probabilities(sdk: openai.OpenAI) -> None:
    completion = sdk.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=4,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 4
    assert all(len(token.top_logprobs) == 3 for token in logprobs.content)
    assert b"".join(bytes(t.bytes or []) for t in logprobs.content).decode(errors="replace")


def test_legacy_completions(sdk: openai.OpenAI) -> None:
    completion = sdk.completions.create(
        model="tiny", prompt=["hello", "world"], max_tokens=3, logprobs=2, echo=True, temperature=0
    )
    assert [choice.index for choice in completion.choices] == [0, 1]
    first = completion.choices[0]
    assert first.text.startswith("hello")
    assert first.logprobs is not None
    assert first.logprobs.text_offset is not None
    assert first.logprobs.tokens is not None
    assert len(first.logprobs.tokens) == len(first.logprobs.text_offset)


def test_legacy_completions_stream(sdk: openai.OpenAI) -> None:
    chunks = list(
        sdk.completions.create(
            model="tiny",
            prompt=[1, 2, 3],
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 3
    assert chunks[-2].choices[0].finish_reason == "length"


def test_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["tiny"]
    assert sdk.models.retrieve("tiny").id == "tiny"


def test_many_asynchronous_streams_at_once(live: LiveServer) -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=20, seed=seed, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def run() -> list[str]:
        async with make_async(live) as client:
            return await asyncio.gather(*(one(client, seed % 4) for seed in range(16)))

    texts = asyncio.run(run())
    assert len(set(texts)) == 4
    assert texts[:4] * 4 == texts


def test_an_asynchronous_client_may_break_off(live: LiveServer) -> None:
    async def run() -> None:
        async with make_async(live) as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=5000, stream=True
            )
            async for _ in stream:
                await stream.close()
                break
            again = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=1
            )
            assert again.choices

    asyncio.run(run())


def test_a_bad_request_is_a_bad_request_error(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="tiny", messages=MESSAGES, temperature=3)
    assert caught.value.param == "temperature"
    assert caught.value.code == "invalid_value"
    assert caught.value.type == "invalid_request_error"


def test_too_long_a_prompt_has_openais_code(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.completions.create(model="tiny", prompt=[1] * 40_000)
    assert caught.value.code == "context_length_exceeded"


def test_an_unknown_model_is_a_not_found_error(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("org/other")


def test_a_wrong_key_is_an_authentication_error(tmp_path: Path) -> None:
    with live_server(tmp_path / "log", "--api-key", KEY) as server:
        base = f"{server.url}/v1"
        with (
            openai.OpenAI(base_url=base, api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        with openai.OpenAI(base_url=base, api_key=KEY, max_retries=0) as client:
            assert client.models.list().data


def test_a_full_queue_is_a_rate_limit_error_and_passes(slow: LiveServer) -> None:
    def has_places_taken() -> bool:
        names = ("running", "waiting")
        return [metric(slow, f"rocmforge_num_requests_{name}") for name in names] == [16, 8]

    async def flood(client: openai.AsyncOpenAI) -> list[object]:
        """Each would take a minute: none ends before the last is sent."""
        asking = [
            asyncio.create_task(
                client.completions.create(
                    model="tiny", prompt="hello", max_tokens=3000, extra_body={"ignore_eos": True}
                )
            )
            for _ in range(40)
        ]
        for _, first in zip(range(40 - 24), asyncio.as_completed(asking), strict=False):
            with contextlib.suppress(openai.RateLimitError):
                await first
        await asyncio.to_thread(until, has_places_taken, "16 run and 8 wait")
        for each in asking:
            each.cancel()
        return await asyncio.gather(*asking, return_exceptions=True)

    async def run() -> list[object]:
        async with make_async(slow) as client:
            results = await flood(client)
            await asyncio.to_thread(assert_settles, slow)
            again = [
                client.completions.create(model="tiny", prompt="hello", max_tokens=3)
                for _ in range(24)
            ]
            await asyncio.gather(*again)
            return results

    results = asyncio.run(run())
    refused = [result for result in results if isinstance(result, openai.RateLimitError)]
    assert len(refused) == 40 - 24
    assert {error.response.headers["retry-after"] for error in refused} == {"1"}


def test_the_libraries_own_retry_gets_through_a_full_queue(slow: LiveServer) -> None:
    async def run() -> list[openai.types.Completion]:
        async with openai.AsyncOpenAI(
            base_url=f"{slow.url}/v1", api_key="none", max_retries=20
        ) as client:
            return await asyncio.gather(
                *(
                    client.completions.create(model="tiny", prompt="hello", max_tokens=10)
                    for _ in range(30)
                )
            )

    assert len(asyncio.run(run())) == 30
