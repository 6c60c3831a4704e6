"""/v1/messages, driven by Anthropic's own Python library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import pytest
from litestar.testing import TestClient

from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.params import FinishReason
from rocmforge.errors import EngineError, QueueFull
from rocmforge.gguf.tokenizer import read_templates
from rocmforge.text.template.template import ChatTemplates
from tests.api import tiny
from tests.api.conftest import Client
from tests.api.fake_engine import MAX_CONTEXT, FakeEngine, build_app, make_model, say, tiny_text
from tests.api.live import assert_settles, live_server
from tests.support.processes.server import LiveServer

PATH = "/v1/messages"
HELLO: Any = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0}  # which the library does not know any more
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"name": "weather", "description": "d", "input_schema": CITY}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


def connect(url: str, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


@pytest.fixture
def sdk(live: LiveServer) -> Iterator[anthropic.Anthropic]:
    with connect(live.url) as client:
        yield client


@pytest.fixture
def post(client: Client) -> Any:
    """Posts a message; keyword arguments become fields of the body."""

    def send(**fields: Any) -> Any:
        body = {"model": "tiny", "max_tokens": 100, "messages": HELLO, **fields}
        return client.post(PATH, json=body)

    return send


def say_text(text: str, **how: Any) -> Any:
    """An engine that says this, a token at a time."""
    ids = tiny_text()[0].encode(text, parse_special=False)
    return say(*[[token] for token in ids], [tiny.IM_END], **how)


def prompt_of(engine: FakeEngine) -> str:
    return tiny_text()[0].decode(engine.submitted[-1].prompt.token_ids, skip_special=False)


def events(body: str) -> list[tuple[str, Any]]:
    """Names and data of a stream's events."""
    found = []
    for block in body.strip().split("\n\n"):
        name, data = block.split("\n")
        parsed = json.loads(data.removeprefix("data: "))
        assert name == f"event: {parsed['type']}"
        found.append((parsed["type"], parsed))
    return found


def test_a_text_that_is_cut(sdk: anthropic.Anthropic) -> None:
    message = sdk.messages.create(
        model="tiny", max_tokens=6, messages=HELLO, system="be brief", extra_body=GREEDY
    )
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    (block,) = message.content
    assert block.type == "text"
    assert block.text
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 6
    assert message._request_id == message.id


def test_the_librarys_own_accumulation(sdk: anthropic.Anthropic) -> None:
    wanted: Any = {"model": "tiny", "max_tokens": 9, "messages": HELLO, "extra_body": GREEDY}
    plain = sdk.messages.create(**wanted)
    with sdk.messages.stream(**wanted) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    (block,) = plain.content
    assert block.type == "text"
    assert text == block.text
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    assert final.stop_reason == plain.stop_reason == "max_tokens"
    assert final.usage.output_tokens == plain.usage.output_tokens == 9


@pytest.mark.parametrize("number", range(3))
def test_a_forced_call_validates(sdk: anthropic.Anthropic, live: LiveServer, number: int) -> None:
    wanted: Any = {"model": "tiny", "max_tokens": 4000, "messages": HELLO, "tools": TOOLS}
    wanted["tool_choice"] = {"type": "tool", "name": "weather"}
    messages = [sdk.messages.create(**wanted)]
    with sdk.messages.stream(**wanted) as stream:
        messages.append(stream.get_final_message())
    for message in messages:
        (call,) = message.content
        assert call.type == "tool_use"
        assert call.id.startswith("toolu_")
        assert call.name == "weather"
        jsonschema.validate(call.input, CITY)
        assert message.stop_reason == "tool_use"
    assert_settles(live)


def test_tokens_are_counted_as_they_are_used(sdk: anthropic.Anthropic) -> None:
    prompt: Any = {"model": "tiny", "messages": HELLO, "system": "be brief", "tools": TOOLS}
    counted = sdk.messages.count_tokens(**prompt)
    with sdk.messages.stream(max_tokens=1, **prompt) as stream:
        used = next(iter(stream))
        assert used.type == "message_start"
        assert used.message.usage.input_tokens == counted.input_tokens > 0


def test_models(sdk: anthropic.Anthropic) -> None:
    (model,) = sdk.models.list()
    assert (model.id, model.type) == ("tiny", "model")
    assert sdk.models.retrieve("tiny").created_at == model.created_at


def test_errors_are_the_librarys_own(sdk: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        sdk.messages.create(model="claude", max_tokens=1, messages=HELLO)
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as bad:
        sdk.messages.create(model="tiny", max_tokens=0, messages=HELLO)
    assert bad.value.type == "invalid_request_error"
    assert "max_tokens" in str(bad.value.api_message)
    with pytest.raises(anthropic.BadRequestError) as long:
        sdk.messages.create(
            model="tiny", max_tokens=1, messages=[{"role": "user", "content": "x" * 40_000}]
        )
    assert str(long.value.api_message).startswith("prompt is too long: ")


def test_a_wrong_key_is_an_authentication_error(tmp_path: Path) -> None:
    with live_server(tmp_path / "log", "--api-key", "a-key") as server:
        with connect(server.url, "wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                client.messages.count_tokens(model="tiny", messages=HELLO)
            assert caught.value.type == "authentication_error"
        with connect(server.url, "a-key") as client:
            assert client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens


def test_the_order_of_events(post: Any, engine: FakeEngine) -> None:
    engine.script = say_text("Well: " + CALL)
    seen = events(post(stream=True, tools=TOOLS).text)
    kinds = [kind for i, (kind, _) in enumerate(seen) if i == 0 or seen[i - 1][0] != kind]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == [
        *("message_start", "ping"),
        *(*block, *block),
        *("message_delta", "message_stop"),
    ]
    start = seen[0][1]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    starts = [data for kind, data in seen if kind == "content_block_start"]
    assert [data["index"] for data in starts] == [0, 1]
    assert starts[0]["content_block"] == {"type": "text", "text": ""}
    assert starts[1]["content_block"]["input"] == {}
    deltas = [data["delta"] for kind, data in seen if kind == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Well: "
    assert "".join(delta.get("partial_json", "") for delta in deltas) == '{"city": "Oslo"}'
    ending = seen[-2][1]
    assert ending["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    used = start["usage"]["input_tokens"]
    assert ending["usage"]["cache_read_input_tokens"] == 3
    assert ending["usage"]["input_tokens"] == used - 3


def test_a_stop_sequence_is_named(post: Any) -> None:
    message = post(stop_sequences=["zzz", "wor"]).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "wor")
    assert message["content"] == [{"type": "text", "text": "hello "}]
    seen = events(post(stop_sequences=["wor"], stream=True).text)
    assert seen[-2][1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "wor"}


def test_a_turn_that_ends(post: Any) -> None:
    message = post().json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["content"] == [{"type": "text", "text": "hello world"}]


def test_a_limit_beyond_the_context_is_no_mistake(post: Any, engine: FakeEngine) -> None:
    engine.script = say_text("hello", finish=FinishReason.LENGTH)
    assert post(max_tokens=10 * MAX_CONTEXT).json()["stop_reason"] == (
        "model_context_window_exceeded"
    )
    submitted = engine.submitted[-1]
    assert submitted.sampling.max_tokens == MAX_CONTEXT - len(submitted.prompt.token_ids)
    assert post(max_tokens=5).json()["stop_reason"] == "max_tokens"
    assert engine.submitted[-1].sampling.max_tokens == 5


def test_thinking_is_a_block_of_its_own(engine: FakeEngine) -> None:
    engine.script = say_text("<think>hello?</think>world")
    tokenizer, _ = tiny_text()
    template = tiny.CHATML + "{# <think> #}"
    templates = ChatTemplates.compile(read_templates(tiny.metadata()), tokenizer, override=template)
    with TestClient(build_app(make_model(engine, templates=templates), ApiSettings())) as http:
        body = {
            "model": "tiny",
            "max_tokens": 99,
            "messages": HELLO,
            "thinking": {"type": "enabled"},
        }
        message = http.post(PATH, json=body).json()
        streamed = events(http.post(PATH, json=body | {"stream": True}).text)
        again = [*HELLO, {"role": "assistant", "content": message["content"]}, *HELLO]
        assert http.post(PATH, json=body | {"messages": again}).status_code == 200
    assert message["content"] == [
        {"type": "thinking", "thinking": "hello?", "signature": ""},
        {"type": "text", "text": "world"},
    ]
    deltas = [data["delta"] for kind, data in streamed if kind == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "hello?"
    assert "".join(delta.get("text", "") for delta in deltas) == "world"


def test_a_conversation_with_tools(post: Any, engine: FakeEngine) -> None:
    history = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "é"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "rain"}],
                    "is_error": False,
                },
                {"type": "text", "text": "and?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    assert post(messages=history, tools=TOOLS).status_code == 200
    prompt = prompt_of(engine)
    assert "<|im_start|>assistant\nLet me see.<|im_end|>" in prompt
    assert "<|im_start|>tool\nrain<|im_end|>\n<|im_start|>user\nand?<|im_end|>" in prompt


def test_the_system_prompt_without_the_line_for_accounting(post: Any, engine: FakeEngine) -> None:
    post(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f2e;"},
            {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
        ]
    )
    assert prompt_of(engine).startswith("<|im_start|>system\nbe brief<|im_end|>")


def test_an_answer_that_the_client_has_begun_is_continued(post: Any, engine: FakeEngine) -> None:
    post(messages=[*HELLO, {"role": "assistant", "content": "The answer is"}])
    assert prompt_of(engine).endswith("<|im_start|>assistant\nThe answer is")


def test_sampling_and_choices_arrive(post: Any, engine: FakeEngine) -> None:
    post(temperature=0.5, top_p=0.7, top_k=3, tools=TOOLS, tool_choice={"type": "any"})
    sampling = engine.submitted[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.7, 3)
    assert "weather" in sampling.grammar
    post(tools=TOOLS, tool_choice={"type": "none"})
    assert "weather" not in prompt_of(engine)
    post(output_config={"format": {"type": "json_schema", "schema": CITY}})
    assert "city" in engine.submitted[-1].sampling.grammar


def test_other_errors_have_anthropics_shape_too(client: Client, engine: FakeEngine) -> None:
    for path in (PATH, f"{PATH}/count_tokens"):
        assert client.get(path).json()["error"]["type"] == "invalid_request_error"
        assert client.get(path).status_code == 405
        too_large = client.post(path, json={"x": "x" * 200_000})
        assert (too_large.status_code, too_large.json()["error"]["type"]) == (
            413,
            "request_too_large",
        )
    assert client.get(f"{PATH}/batches").json()["error"]["type"] == "not_found_error"
    engine.refuses = QueueFull("full", retry_after_s=2)
    full = client.post(PATH, json={"model": "tiny", "max_tokens": 1, "messages": HELLO})
    assert (full.status_code, full.headers["retry-after"]) == (429, "2")
    assert full.json()["error"]["type"] == "rate_limit_error"


def test_a_failure_in_a_stream_is_its_last_event(post: Any, engine: FakeEngine) -> None:
    engine.script = lambda request: [EngineError("secret")]
    name, data = events(post(stream=True).text)[-1]
    assert name == "error"
    assert data["error"]["type"] == "api_error"
    assert "secret" not in data["error"]["message"]
    assert engine.live == set()
