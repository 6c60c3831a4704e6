"""Whatever a client sends, it gets a 4xx that names the field, and nothing stays behind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Client
from tests.api.fake_engine import MAX_CONTEXT, FakeEngine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
POST_PATHS = [
    *(CHAT, COMPLETIONS, "/v1/responses", "/v1/embeddings", "/v1/rerank"),
    *("/tokenize", "/detokenize"),
]

HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "hello"}


def assert_openai_error(response: Any, status: int, *, param: str | None = None) -> Any:
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    detail = response.json()["error"]
    assert set(detail) == {"message", "type", "param", "code"}
    assert detail["param"] == param
    return detail


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", POST_PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"17",
        b'{"model": "tiny"} trailing',
        b'{"model": NaN}',
        b'{"model": "tiny", "temperature": Infinity}',
        b'{"model": "\\ud800"}',
        b'{"model": "tiny\xff"}',
        b'{"model": "\xed\xa0\x80"}',
        b"\x00",
        '{"model": "tiny"}'.encode("utf-16"),
        b'{"x": ' + b"[" * 40_000 + b"]" * 39_999,
        b'{"prompt": ' + b"[" * 40_000 + b"]" * 40_000 + b"}",
        b'{"temperature": 1e999}',
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_broken_body_is_a_400(client: Client, path: str, body: bytes) -> None:
    response = client.post(path, content=body, headers=JSON)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {}, "model"),
        (CHAT, {"model": "tiny"}, "messages"),
        (CHAT, {"model": 7, "messages": []}, "model"),
        (CHAT, {"model": None, "messages": []}, "model"),
        (CHAT, HELLO | {"messages": []}, "messages"),
        (CHAT, HELLO | {"messages": "hello"}, "messages"),
        (CHAT, HELLO | {"messages": ["hello"]}, "messages[0]"),
        (CHAT, HELLO | {"messages": [{"content": "x"}]}, "messages[0].role"),
        (CHAT, HELLO | {"messages": [{"role": "wizard"}]}, "messages[0].role"),
        (CHAT, HELLO | {"messages": [{"role": "user"}]}, "messages[0].content"),
        (CHAT, HELLO | {"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        (
            CHAT,
            HELLO | {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            CHAT,
            HELLO | {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages[0].content[0].type",
        ),
        (CHAT, HELLO | {"temperature": -0.1}, "temperature"),
        (CHAT, HELLO | {"temperature": 2.1}, "temperature"),
        (CHAT, HELLO | {"temperature": "hot"}, "temperature"),
        (CHAT, HELLO | {"temperature": True}, "temperature"),
        (CHAT, HELLO | {"top_p": 1.1}, "top_p"),
        (CHAT, HELLO | {"top_p": -1}, "top_p"),
        (CHAT, HELLO | {"top_k": -2}, "top_k"),
        (CHAT, HELLO | {"top_k": 1.5}, "top_k"),
        (CHAT, HELLO | {"top_k": 10**30}, "top_k"),
        (CHAT, HELLO | {"min_p": 2}, "min_p"),
        (CHAT, HELLO | {"repetition_penalty": 0}, "repetition_penalty"),
        (CHAT, HELLO | {"presence_penalty": 3}, "presence_penalty"),
        (CHAT, HELLO | {"frequency_penalty": -3}, "frequency_penalty"),
        (CHAT, HELLO | {"n": 0}, "n"),
        (CHAT, HELLO | {"n": 129}, "n"),
        (CHAT, HELLO | {"n": "2"}, "n"),
        (CHAT, HELLO | {"seed": 1.5}, "seed"),
        (CHAT, HELLO | {"stop": [1]}, "stop[0]"),
        (CHAT, HELLO | {"stop": ""}, "stop"),
        (CHAT, HELLO | {"stop": ["a", ""]}, "stop"),
        (CHAT, HELLO | {"stop": ["x"] * 17}, "stop"),
        (CHAT, HELLO | {"stop": "x" * 513}, "stop"),
        (CHAT, HELLO | {"max_tokens": 0}, "max_tokens"),
        (CHAT, HELLO | {"max_tokens": -1}, "max_tokens"),
        (CHAT, HELLO | {"max_tokens": 1.5}, "max_tokens"),
        (CHAT, HELLO | {"max_tokens": "many"}, "max_tokens"),
        (CHAT, HELLO | {"max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, HELLO | {"min_tokens": -1}, "min_tokens"),
        (CHAT, HELLO | {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        (CHAT, HELLO | {"logprobs": 5}, "logprobs"),
        (CHAT, HELLO | {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, HELLO | {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, HELLO | {"logit_bias": {"word": 1}}, "logit_bias"),
        (CHAT, HELLO | {"logit_bias": {"5": "x"}}, "logit_bias[...]"),
        (CHAT, HELLO | {"logit_bias": {"5": 101}}, "logit_bias[...]"),
        (CHAT, HELLO | {"logit_bias": {"1000": 1}}, "logit_bias"),
        (CHAT, HELLO | {"logit_bias": {"-1": 1}}, "logit_bias"),
        (CHAT, HELLO | {"logit_bias": {str(10**25): 1}}, "logit_bias"),
        (CHAT, HELLO | {"logit_bias": [1]}, "logit_bias"),
        (CHAT, HELLO | {"stop_token_ids": [1000]}, "stop_token_ids"),
        (CHAT, HELLO | {"stop_token_ids": [10**25]}, "stop_token_ids"),
        (CHAT, HELLO | {"stream": "yes"}, "stream"),
        (CHAT, HELLO | {"stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, HELLO | {"stream": True, "stream_options": 1}, "stream_options"),
        (
            CHAT,
            HELLO | {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
        ),
        (CHAT, HELLO | {"ignore_eos": "no"}, "ignore_eos"),
        (CHAT, HELLO | {"continue_final_message": True}, "continue_final_message"),
        (
            CHAT,
            HELLO | {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (CHAT, HELLO | {"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        (COMPLETIONS, {"model": "tiny"}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": ""}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": []}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": [[]]}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": ["a", ""]}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": ["a", 1]}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": ["a", [1]]}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": [[1], 1]}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": [1.5]}, "prompt[0]"),
        (COMPLETIONS, PROMPT | {"prompt": {"text": "a"}}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": [1000]}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": [[1], [10**25]]}, "prompt"),
        (COMPLETIONS, PROMPT | {"prompt": ["a"] * 9, "n": 128}, "prompt"),
        (COMPLETIONS, PROMPT | {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, PROMPT | {"max_tokens": -1}, "max_tokens"),
        (COMPLETIONS, PROMPT | {"logprobs": True}, "logprobs"),
        (COMPLETIONS, PROMPT | {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, PROMPT | {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, PROMPT | {"echo": "yes"}, "echo"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1000]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(
    client: Client, engine: FakeEngine, path: str, body: dict[str, Any], param: str
) -> None:
    response = client.post(path, json=body)
    detail = assert_openai_error(response, 400, param=param)
    assert param.partition("[")[0].rpartition(".")[2] in detail["message"]
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (CHAT, "functions", [{"name": "f"}]),
        (CHAT, "modalities", ["text", "audio"]),
        (CHAT, "audio", {"voice": "x"}),
        (CHAT, "typical_p", 0.5),  # this engine has no logits processors
        (CHAT, "use_beam_search", True),
        (CHAT, "best_of", 2),
        (CHAT, "chat_template", "{{ x }}"),
        (COMPLETIONS, "suffix", "the end"),
    ],
)
def test_what_we_know_and_cannot_do_is_refused_by_name(
    client: Client, engine: FakeEngine, path: str, field: str, value: Any
) -> None:
    body = (HELLO if path == CHAT else PROMPT) | {field: value}
    detail = assert_openai_error(client.post(path, json=body), 400, param=field)
    assert detail["code"] == "unsupported_parameter"
    assert engine.submitted == []


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_content_that_is_not_text_is_refused_by_name(client: Client, kind: str) -> None:
    content = [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": "x"}}]
    body = HELLO | {"messages": [{"role": "user", "content": content}]}
    detail = assert_openai_error(client.post(CHAT, json=body), 400, param="messages[0].content[1]")
    assert kind in detail["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None, "tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"best_of": 1},
        {"modalities": ["text"]},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"parallel_tool_calls": False, "safety_identifier": "x", "prompt_cache_key": "y"},
        {"some_field_of_2030": {"deep": [1, 2]}},
        {"stop": None, "temperature": None, "n": None, "max_tokens": None, "logit_bias": None},
        {"stop": [], "logit_bias": {}, "stop_token_ids": []},
    ],
)
def test_what_asks_for_nothing_is_accepted(chat: Any, fields: dict[str, Any]) -> None:
    assert chat(**fields).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_unknown_model_is_a_404(client: Client, path: str) -> None:
    body = (HELLO if path == CHAT else PROMPT) | {"model": "gpt-4"}
    detail = assert_openai_error(client.post(path, json=body), 404, param="model")
    assert detail["code"] == "model_not_found"
    assert "gpt-4" in detail["message"]


def test_a_prompt_longer_than_the_context_is_refused_with_both_lengths(complete: Any) -> None:
    response = complete(prompt=[1] * (MAX_CONTEXT + 5))
    detail = assert_openai_error(response, 400, param="prompt")
    assert detail["code"] == "context_length_exceeded"
    assert str(MAX_CONTEXT) in detail["message"]
    assert str(MAX_CONTEXT + 5) in detail["message"]


def test_max_tokens_beyond_the_context_is_refused(complete: Any) -> None:
    response = complete(prompt=[1] * 100, max_tokens=MAX_CONTEXT - 99)
    detail = assert_openai_error(response, 400, param="max_tokens")
    assert detail["code"] == "context_length_exceeded"


def test_a_prompt_may_fill_the_context_to_the_last_token(complete: Any) -> None:
    assert complete(prompt=[1] * 100, max_tokens=MAX_CONTEXT - 100).status_code == 200


@pytest.mark.parametrize(
    "content_type",
    [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"],
)
@pytest.mark.parametrize("path", POST_PATHS)
def test_a_body_that_is_not_declared_as_json_is_a_415(
    client: Client, path: str, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = client.post(path, content=b"{}", headers=headers)
    assert assert_openai_error(response, 415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize("content_type", ["application/json; charset=UTF-8", "Application/JSON"])
def test_content_types_that_mean_json_are_accepted(client: Client, content_type: str) -> None:
    response = client.post(
        "/tokenize", content=b'{"prompt": "a"}', headers={"content-type": content_type}
    )
    assert response.status_code == 200


@pytest.mark.parametrize("path", POST_PATHS)
def test_a_body_above_the_limit_is_a_413(client: Client, path: str) -> None:
    response = client.post(path, json={"prompt": "x" * 200_000})
    assert assert_openai_error(response, 413)["code"] == "request_too_large"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "/v2/models", "/v1/chat"])
def test_an_unknown_path_is_a_404(client: Client, path: str) -> None:
    assert assert_openai_error(client.get(path), 404)["code"] == "unknown_url"


@pytest.mark.parametrize("path", POST_PATHS)
def test_the_wrong_method_is_a_405_that_names_the_right_one(client: Client, path: str) -> None:
    response = client.get(path)
    assert assert_openai_error(response, 405)["code"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]


def test_a_template_argument_cannot_break_the_server(chat: Any) -> None:
    response = chat(chat_template_kwargs={"messages": 1, "add_generation_prompt": "x"})
    assert response.status_code in {200, 400}
