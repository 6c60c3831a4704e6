"""Tool calls against a live server, through OpenAI's library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.api import tiny
from tests.api.fake_engine import FakeEngine, say, tiny_text
from tests.api.live import assert_settles
from tests.support.processes.server import LiveServer

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": WEATHER, "now": EMPTY}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
MESSAGES: Any = [{"role": "user", "content": "hello"}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo", "days": 1}}</tool_call>'


@pytest.fixture
def sdk(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def validate(calls: Any) -> None:
    for call in calls:
        assert call.id.startswith("call_")
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.parametrize("seed", range(12))
def test_required_calls_parse_and_validate(sdk: openai.OpenAI, seed: int) -> None:
    completion = sdk.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice="required",
        seed=seed,
        temperature=1.5,
        max_tokens=4000,
    )
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls
    validate(choice.message.tool_calls)


def test_a_named_function_is_called_once(sdk: openai.OpenAI) -> None:
    for seed in range(5):
        completion = sdk.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            tools=TOOLS,
            seed=seed,
            tool_choice={"type": "function", "function": {"name": "weather"}},
        )
        calls = completion.choices[0].message.tool_calls or []
        validate(calls)
        assert [call.function.name for call in calls if call.type == "function"] == ["weather"]


def test_calls_one_at_a_time_if_asked(sdk: openai.OpenAI) -> None:
    for seed in range(8):
        completion = sdk.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            tools=TOOLS,
            seed=seed,
            tool_choice="required",
            parallel_tool_calls=False,
        )
        assert len(completion.choices[0].message.tool_calls or []) == 1


def test_streamed_and_plain_answers_are_equal(sdk: openai.OpenAI, live: LiveServer) -> None:
    wanted: Any = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS}
    wanted |= {"tool_choice": "required", "seed": 5}
    plain = sdk.chat.completions.create(**wanted).choices[0]
    with sdk.chat.completions.stream(**wanted) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    assert plain.message.tool_calls
    assert [
        (call.function.name, call.function.arguments) for call in streamed.message.tool_calls or []
    ] == [(call.function.name, call.function.arguments) for call in plain.message.tool_calls]
    assert streamed.finish_reason == plain.finish_reason == "tool_calls"
    assert_settles(live)


def test_deltas_have_the_id_and_name_first_and_an_integer_index(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        tools=TOOLS,
        seed=1,
        stream=True,
        tool_choice={"type": "function", "function": {"name": "weather"}},
    )
    chunks = [chunk.choices[0] for chunk in stream]
    deltas = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    first, *rest = deltas
    assert (first.index, first.type) == (0, "function")
    assert first.id
    assert first.function is not None
    assert (first.function.name, first.function.arguments) == ("weather", "")
    assert len(rest) > 1
    assert all(call.index == 0 and call.id is None for call in rest)
    assert chunks[-1].finish_reason == "tool_calls"
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])


def say_text(text: str) -> Any:
    """An engine that says this, a token at a time."""
    ids = tiny_text()[0].encode(text, parse_special=False)
    return say(*[[token] for token in ids], [tiny.IM_END])


def test_the_model_may_choose_to_call(chat: Any, engine: FakeEngine) -> None:
    engine.script = say_text("Well: " + CALL)
    choice = chat(tools=TOOLS).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Well: "
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo", "days": 1}'}


UNSUPPORTED = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


def auto_grammar(chat: Any, engine: FakeEngine, *tools: dict[str, Any], **fields: Any) -> str:
    """What the engine holds calls to that the model may make or not."""
    offered = [{"type": "function", "function": tool} for tool in tools]
    answer = chat(tools=offered, **fields)
    assert answer.status_code == 200, answer.text
    return engine.submitted[-1].sampling.grammar


def test_a_call_by_choice_is_held_to_its_function(chat: Any, engine: FakeEngine) -> None:
    grammar = auto_grammar(chat, engine, {"name": "weather", "parameters": WEATHER})
    assert "weather" in grammar
    assert "maximum" in grammar
    assert auto_grammar(chat, engine, {"name": "w"}, tool_choice="auto") != ""
    assert auto_grammar(chat, engine, {"name": "w"}, tool_choice="none") == ""


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 1}])
def test_an_answer_without_an_end_is_held_to_nothing(
    chat: Any, engine: FakeEngine, fields: Any
) -> None:
    assert auto_grammar(chat, engine, {"name": "w"}, **fields) == ""


@pytest.mark.parametrize("strict", [None, False])
def test_arguments_whose_schema_cannot_be_enforced_are_an_object(
    chat: Any, engine: FakeEngine, strict: bool | None
) -> None:
    odd = {"name": "odd", "parameters": UNSUPPORTED, "strict": strict}
    grammar = auto_grammar(chat, engine, odd, {"name": "weather", "parameters": WEATHER})
    assert "odd" in grammar
    assert "uniqueItems" not in grammar
    assert "maximum" in grammar


def test_a_strict_function_whose_schema_cannot_be_enforced_is_refused(chat: Any) -> None:
    odd = {"name": "odd", "parameters": UNSUPPORTED, "strict": True}
    error = chat(tools=[{"type": "function", "function": odd}]).json()["error"]
    assert error["param"] == "tools[0].function.parameters"
    assert "uniqueItems" in error["message"]


def test_the_model_may_choose_not_to_call(chat: Any, engine: FakeEngine) -> None:
    engine.script = say_text("No need.")
    choice = chat(tools=TOOLS, tool_choice="auto").json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "No need."
    assert "tool_calls" not in choice["message"]


def test_without_tools_a_call_is_text(chat: Any, engine: FakeEngine) -> None:
    engine.script = say_text(CALL)
    assert chat(tools=TOOLS, tool_choice="none").json()["choices"][0]["message"]["content"] == CALL


def test_every_token_keeps_its_log_probability(chat: Any, engine: FakeEngine) -> None:
    engine.script = say_text(CALL)
    count = len(tiny_text()[0].encode(CALL, parse_special=False))
    plain = chat(tools=TOOLS, logprobs=True).json()["choices"][0]
    assert len(plain["logprobs"]["content"]) == count
    lines = chat(tools=TOOLS, logprobs=True, stream=True).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert sum(len(each["content"]) for each in logprobs if each) == count


def test_the_history_may_hold_calls_and_their_results(chat: Any, engine: FakeEngine) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    assert chat(messages=messages, tools=TOOLS).status_code == 200
    assert "noon" in tiny_text()[0].decode(engine.submitted[0].prompt.token_ids)


def test_a_template_without_tools_is_told_in_a_system_message(
    chat: Any, engine: FakeEngine
) -> None:
    chat(tools=TOOLS)
    chat(tools=TOOLS, tool_choice="none")
    with_tools, without = (
        tiny_text()[0].decode(request.prompt.token_ids) for request in engine.submitted
    )
    assert '"weather"' in with_tools
    assert '"weather"' not in without


ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 9}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER, "strict": True}}


def test_an_answer_is_a_call_or_has_the_form_that_was_asked_for(sdk: openai.OpenAI) -> None:
    seen = set()
    for seed in range(16):
        wanted: Any = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "seed": seed}
        completion = sdk.chat.completions.create(**wanted, response_format=FORM, max_tokens=3000)
        (choice,) = completion.choices
        seen.add(choice.finish_reason)
        if choice.finish_reason == "tool_calls":
            validate(choice.message.tool_calls)
        else:
            jsonschema.validate(json.loads(choice.message.content or ""), ANSWER)
    assert seen == {"tool_calls", "stop"}


def test_a_forced_call_goes_before_the_form_of_the_answer(sdk: openai.OpenAI) -> None:
    wanted: Any = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "seed": 3}
    completion = sdk.chat.completions.create(**wanted, response_format=FORM, tool_choice="required")
    assert completion.choices[0].finish_reason == "tool_calls"
