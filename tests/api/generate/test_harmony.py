"""gpt-oss' answers through every endpoint: reasoning, text and calls, whatever the model writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.params import FinishReason
from tests.api.fake_engine import FakeEngine, build_app, make_model, say
from tests.api.harmony import harmony_text, mark

MESSAGES: Any = [{"role": "user", "content": "hello"}]
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
THINK = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
ANSWER = f"{THINK}<|channel|>final<|message|>Hello!<|return|>"
CALL = f'{THINK}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"a": 1}}<|call|>'
NOT_JSON = f"{THINK} to=functions.f<|channel|>commentary json<|message|>{{'a':\n1,<|call|>"
PREAMBLE = f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL[len(THINK) :]}"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def http(engine: FakeEngine) -> Iterator[TestClient[Any]]:
    tokenizer, templates = harmony_text()
    model = make_model(engine, tokenizer=tokenizer, templates=templates)
    with TestClient(build_app(model, ApiSettings())) as client:
        yield client


def tokens(answer: str) -> list[int]:
    return harmony_text()[0].encode(answer, parse_special=True)


def says(answer: str, finish: FinishReason = FinishReason.STOP) -> Any:
    return say(*[[token] for token in tokens(answer)], finish=finish)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def chat(http: TestClient[Any], **fields: Any) -> dict[str, Any]:
    """The choice of a plain answer; the streamed one must be equal."""
    body = {"model": "tiny", "messages": MESSAGES, **fields}
    plain = http.post("/v1/chat/completions", json=body)
    assert plain.status_code == 200, plain.text
    choice: dict[str, Any] = plain.json()["choices"][0]
    message = choice["message"]
    stream = http.post("/v1/chat/completions", json={**body, "stream": True})
    choices = [event["choices"][0] for event in events(stream.text)]
    deltas = [each["delta"] for each in choices]
    assert "".join(d.get("content") or "" for d in deltas) == (message["content"] or "")
    thoughts = "".join(d.get("reasoning_content", "") for d in deltas)
    assert thoughts == message.get("reasoning_content", "")
    calls = [call["function"] for d in deltas for call in d.get("tool_calls", [])]
    assert "".join(call["arguments"] for call in calls) == "".join(
        call["function"]["arguments"] for call in message.get("tool_calls", [])
    )
    assert choices[-1]["finish_reason"] == choice["finish_reason"]
    return choice


def test_channels_become_reasoning_and_content(http: TestClient[Any], engine: FakeEngine) -> None:
    engine.script = says(ANSWER)
    choice = chat(http)
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] == "Hello!"
    assert choice["finish_reason"] == "stop"


def test_what_was_thought_counts_as_reasoning(http: TestClient[Any], engine: FakeEngine) -> None:
    engine.script = says(ANSWER)
    body = {"model": "tiny", "messages": MESSAGES}
    usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["completion_tokens_details"] == {
        "reasoning_tokens": len(tokens("<|channel|>analysis<|message|>Hm."))
    }


@pytest.mark.parametrize(
    ("answer", "arguments"), [(CALL, '{"a": 1}'), (NOT_JSON, "{'a':\n1,"), (PREAMBLE, '{"a": 1}')]
)
def test_a_call_is_a_call_whatever_its_arguments_are(
    http: TestClient[Any], engine: FakeEngine, answer: str, arguments: str
) -> None:
    engine.script = says(answer)
    choice = chat(http, tools=TOOLS)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": arguments}
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == ("I look." if answer == PREAMBLE else None)


def test_responses_have_items_for_thoughts_and_calls(
    http: TestClient[Any], engine: FakeEngine
) -> None:
    tools = [{"type": "function", **FUNCTION}]
    for answer, arguments in ((CALL, '{"a": 1}'), (NOT_JSON, "{'a':\n1,")):
        engine.script = says(answer)
        body = {"model": "tiny", "input": "hello", "tools": tools}
        plain = http.post("/v1/responses", json=body).json()["output"]
        (*_, last) = events(http.post("/v1/responses", json={**body, "stream": True}).text)
        for thought, call in (plain, last["response"]["output"]):
            assert thought["content"][0]["text"] == "Hm."
            assert (call["name"], call["arguments"]) == ("f", arguments)


def test_messages_show_arguments_that_are_not_json(
    http: TestClient[Any], engine: FakeEngine
) -> None:
    tools = [{"name": "f", "input_schema": FUNCTION["parameters"]}]
    body = {"model": "tiny", "max_tokens": 99, "messages": MESSAGES, "tools": tools}
    for answer, found in ((CALL, {"a": 1}), (NOT_JSON, {"INVALID_JSON": "{'a':\n1,"})):
        engine.script = says(answer)
        thought, call = http.post("/v1/messages", json=body).json()["content"]
        assert thought["thinking"] == "Hm."
        assert (call["name"], call["input"]) == ("f", found)
        streamed = events(http.post("/v1/messages", json={**body, "stream": True}).text)
        pieces = [event["delta"].get("partial_json", "") for event in streamed if "delta" in event]
        assert "".join(pieces) == ('{"a": 1}' if answer == CALL else "{'a':\n1,")


def test_an_answer_may_be_cut_anywhere(http: TestClient[Any], engine: FakeEngine) -> None:
    ids = tokens(PREAMBLE)
    for count in range(1, len(ids)):
        engine.script = say(*[[token] for token in ids[:count]], finish=FinishReason.LENGTH)
        assert chat(http, tools=TOOLS)["finish_reason"] == "length"


def test_marks_that_are_spelled_out_are_text(http: TestClient[Any], engine: FakeEngine) -> None:
    spelled = "So: <|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}"
    tokenizer, _ = harmony_text()
    ids = [*tokens("<|channel|>final<|message|>"), *tokenizer.encode(spelled, parse_special=False)]
    engine.script = say(*[[token] for token in ids], [mark("<|return|>")])
    message = chat(http, tools=TOOLS)["message"]
    assert message["content"] == spelled
    assert "tool_calls" not in message


def test_the_end_of_a_message_is_not_the_end_of_the_answer(
    http: TestClient[Any], engine: FakeEngine
) -> None:
    engine.script = says(ANSWER)
    chat(http)
    assert {*engine.submitted[0].eos_ids} >= {mark("<|return|>"), mark("<|call|>")}
    assert mark("<|end|>") not in engine.submitted[0].eos_ids


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "high"}),
        ("/v1/responses", {"input": "hello", "reasoning": {"effort": "high"}}),
    ],
)
def test_the_effort_reaches_the_template(
    http: TestClient[Any], engine: FakeEngine, path: str, fields: dict[str, Any]
) -> None:
    engine.script = says(ANSWER)
    body = {"model": "tiny", "messages": MESSAGES, **fields}
    assert http.post(path, json=body).status_code == 200
    assert "Reasoning: high" in harmony_text()[0].decode(engine.submitted[0].prompt.token_ids)


def test_an_answer_that_is_continued_is_text(http: TestClient[Any], engine: FakeEngine) -> None:
    engine.script = says(" to=all<|return|>")  # what could begin a message, were it not begun
    messages = [*MESSAGES, {"role": "assistant", "content": "Hello"}]
    choice = chat(http, messages=messages, continue_final_message=True)
    assert choice["message"]["content"] == " to=all"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"thinking_budget": 7}),
        ("/v1/messages", {"max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 7}}),
    ],
)
def test_a_budget_limits_the_analysis(
    http: TestClient[Any], engine: FakeEngine, path: str, fields: dict[str, Any]
) -> None:
    engine.script = says(ANSWER)
    body = {"model": "tiny", "messages": MESSAGES, **fields}
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert "max_tokens=7" in engine.submitted[-1].sampling.grammar
    refused = http.post(
        "/v1/chat/completions", json={**body, "min_tokens": 1, "thinking_budget": 7}
    )
    assert refused.json()["error"]["param"] == "thinking_budget"


def test_what_is_left_of_a_message_is_held_to_its_own_form_only(
    http: TestClient[Any], engine: FakeEngine
) -> None:
    engine.script = says("1<|return|>")
    messages = [*MESSAGES, {"role": "assistant", "content": "="}]
    wanted: dict[str, Any] = {"messages": messages, "continue_final_message": True}
    chat(http, **wanted, tools=TOOLS)
    assert engine.submitted[-1].sampling.grammar == ""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 1}}}
    chat(http, **wanted, tools=TOOLS, response_format=form)
    assert "analysis" not in engine.submitted[-1].sampling.grammar
    assert engine.submitted[-1].sampling.grammar != ""
    body = {"model": "tiny", **wanted, "tools": TOOLS, "tool_choice": "required"}
    refused = http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tool_choice"


def test_a_form_is_that_of_the_last_message(http: TestClient[Any], engine: FakeEngine) -> None:
    engine.script = says(ANSWER)
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": 1}}}
    chat(http, response_format=form)
    assert "analysis" in engine.submitted[0].sampling.grammar


def test_a_vocabulary_without_the_marks_is_named(engine: FakeEngine) -> None:
    model = make_model(engine, templates=harmony_text()[1])
    with TestClient(build_app(model, ApiSettings())) as client:
        body = {"model": "tiny", "messages": MESSAGES}
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "<|start|>" in answer.json()["error"]["message"]
