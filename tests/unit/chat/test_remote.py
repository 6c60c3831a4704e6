"""Answers from servers, of which some are not ours and some are broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, aclosing
from typing import Any

import pytest

from rocmforge.commands.chat.conversation import Conversation, Exchange, Turn
from rocmforge.commands.chat.remote import (
    RemoteModel,
    RemoteResponder,
    RemoteServer,
    find_remote,
    only_model,
)
from rocmforge.commands.chat.responder import Ended, Part
from rocmforge.errors import ConfigurationError, RemoteError
from rocmforge.text.output.reasoning import Reasoning
from tests.support.processes.canned_server import STOP, Answer, Asked, canned_server, delta, events

Answers = Callable[..., str]
QUESTION = Turn(Conversation(system="Be brief."), "well?", {"temperature": 0.5})


@pytest.fixture
def asked() -> list[Asked]:
    """All requests so far."""
    return []


@pytest.fixture
def serve(asked: list[Asked]) -> Iterator[Answers]:
    """Starts a server with such answers by path, and returns its address."""
    with ExitStack() as stack:
        yield lambda answers: stack.enter_context(canned_server(answers, asked))


def answered(
    url: str, turn: Turn = QUESTION, model: RemoteModel | None = None, key: str | None = None
) -> list[Part]:
    async def run() -> list[Part]:
        server = RemoteServer(url, key)
        try:
            responder = RemoteResponder(server, model or RemoteModel(id="m"))
            async with aclosing(responder.answer(turn)) as parts:
                return [part async for part in parts]
        finally:
            await server.close()

    return asyncio.run(run())


CHAT = "/v1/chat/completions"


def test_an_answer_comes_in_parts(serve: Answers, asked: list[Asked]) -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 1}}
    chunks = (delta(role="assistant"), delta(reasoning_content="hm"), delta(content="fine"))
    url = serve({CHAT: events(*chunks, STOP, usage)})
    assert answered(url, key="secret") == [Reasoning("hm"), "fine", Ended("stop", 3)]
    path, key, body = asked[0]
    assert (path, key) == (CHAT, "Bearer secret")
    assert body["messages"] == QUESTION.messages
    assert (body["model"], body["temperature"], body["stream"]) == ("m", 0.5, True)


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_in_v1(serve: Answers, suffix: str) -> None:
    assert answered(serve({CHAT: events(delta(content="a"), STOP)}) + suffix)[0] == "a"


def test_characters_that_end_lines_elsewhere_end_none_here(serve: Answers) -> None:
    text = "a\u2028b\x85c\x0bd"
    assert answered(serve({CHAT: events(delta(content=text), STOP)}))[0] == text


def test_comments_that_keep_a_connection_alive_are_passed_over(serve: Answers) -> None:
    status, data = events(delta(content="a"), STOP)
    assert answered(serve({CHAT: (status, b": ping\n\n" + data)}))[0] == "a"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ((401, b'{"error": {"message": "No key."}}'), r"status 401: No key\. .*--api-key"),
        ((500, b"<html>oops</html>"), "status 500: <html>oops"),
        ((404, b'{"error": "model not found"}'), "status 404: model not found"),
        ((200, b"data: {\n\n"), "does not answer as a server with OpenAI's API"),
        ((200, b""), "ended the answer before it was finished"),
        (events(delta(content="a"), end=b""), "ended the answer before it was finished"),
        (events({"error": {"message": "The engine died."}}), "The engine died"),
    ],
)
def test_what_a_server_refuses_or_breaks_is_said(serve: Answers, answer: Answer, what: str) -> None:
    with pytest.raises(RemoteError, match=what) as error:
        answered(serve({CHAT: answer}))
    assert not error.value.is_full


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "too long", "code": "context_length_exceeded"}},
        {"error": {"message": "too long", "type": "exceed_context_size_error"}},
        {"message": "This model's maximum context length is 64 tokens."},
    ],
)
def test_a_full_context_is_told_from_other_refusals(serve: Answers, body: Any) -> None:
    with pytest.raises(RemoteError) as error:
        answered(serve({CHAT: (400, json.dumps(body).encode())}))
    assert error.value.is_full


def test_a_key_beyond_ascii_is_sent_as_the_server_reads_it(
    serve: Answers, asked: list[Asked]
) -> None:
    answered(serve({CHAT: events(STOP)}), key="schlüssel")
    assert asked[0][1] == "Bearer schlüssel".encode().decode("latin-1")  # as http.server reads it


def test_where_no_server_is_it_is_said() -> None:
    with pytest.raises(RemoteError, match=r"No server answers at http://127\.0\.0\.1:1:"):
        answered("http://127.0.0.1:1")


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://a", "http://", "nonsense", "http://a:b", "http://a:65536"]
)
def test_an_address_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--url"):
        RemoteServer(url, None)


BASE = RemoteModel(id="m", max_model_len=64, capabilities=("completions",))


def test_a_base_model_of_a_server_continues_texts(serve: Answers, asked: list[Asked]) -> None:
    counted = b'{"count": 4, "max_model_len": 64, "tokens": []}'
    done = {"choices": [{"text": " world", "finish_reason": "length"}]}
    url = serve({"/tokenize": (200, counted), "/v1/completions": events(done)})
    turn = Turn(Conversation(exchanges=(Exchange("a", "b"),)), "hello")
    assert answered(url, turn, BASE) == [" world", Ended("length", None)]
    assert [body.get("prompt") for _, _, body in asked] == ["ab\nhello", "ab\nhello"]
    assert asked[-1][2]["max_tokens"] == 60  # else servers stop after 16


@pytest.mark.parametrize(
    ("answers", "room"),
    [
        ({"/tokenize": (200, b'{"count": 50, "max_model_len": 64, "tokens": []}')}, 14),
        ({"/tokenize": (200, b'{"tokens": []}')}, None),  # llama.cpp's
        ({}, None),
    ],
)
def test_room_is_known_where_the_server_counts(
    serve: Answers, answers: Mapping[str, Answer], room: int | None
) -> None:
    async def ask() -> int | None:
        server = RemoteServer(serve(answers), None)
        try:
            model = RemoteModel(id="m", max_model_len=64)
            return await RemoteResponder(server, model).room(QUESTION)
        finally:
            await server.close()

    assert asyncio.run(ask()) == room


MODELS = [RemoteModel(id="small"), RemoteModel(id="large")]


def test_the_only_model_needs_no_name() -> None:
    assert find_remote(MODELS[:1], None, "url").id == "small"
    assert find_remote(MODELS, "large", "url").id == "large"


def test_a_model_with_several_names_is_one() -> None:
    named = [
        RemoteModel(id="smollm2", aliases=("SmolLM2-135M",)),
        RemoteModel(id="SmolLM2-135M", aliases=("smollm2",)),
    ]
    assert find_remote(named, None, "url").id == "smollm2"
    assert find_remote(named, "SmolLM2-135M", "url").id == "SmolLM2-135M"
    assert only_model([*named, RemoteModel(id="other", aliases=())]) is None
    assert only_model([]) is None


@pytest.mark.parametrize(
    ("models", "name", "what"),
    [
        ([], None, "has no model"),
        (MODELS, None, "several models. Name one of: small, large"),
        (MODELS, "smal", "has no model smal. Did you mean small?"),
    ],
)
def test_otherwise_a_model_is_named(models: list[RemoteModel], name: str | None, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        find_remote(models, name, "url")
