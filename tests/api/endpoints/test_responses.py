"""/v1/responses, driven by OpenAI's own Python library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from litestar.testing import TestClient
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)

from rocmforge.api.http.settings import ApiSettings
from rocmforge.errors import EngineError
from rocmforge.gguf.tokenizer import read_templates
from rocmforge.text.template.template import ChatTemplates
from tests.api import tiny
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model, say, tiny_text
from tests.api.live import assert_settles
from tests.support.processes.server import LiveServer

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "name": "weather", "description": "d", "parameters": CITY, "strict": True}
]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
LIFE = ["response.created", "response.in_progress"]
MESSAGE = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


@pytest.fixture
def sdk(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def scripted(client: Client) -> openai.OpenAI:
    """The library on an engine that follows a script."""
    transport: Any = client  # the library's own type of client differs by version
    url = "http://testserver.local/v1"
    return openai.OpenAI(http_client=transport, base_url=url, api_key="none", max_retries=0)


def say_text(text: str) -> Any:
    """An engine that says this, a token at a time."""
    ids = tiny_text()[0].encode(text, parse_special=False)
    return say(*[[token] for token in ids], [tiny.IM_END])


def prompt_of(engine: FakeEngine, number: int = -1) -> str:
    return tiny_text()[0].decode(engine.submitted[number].prompt.token_ids, skip_special=False)


def without_repeats(kinds: list[str]) -> list[str]:
    return [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]


def stream(sdk: openai.OpenAI, **fields: Any) -> tuple[list[Any], Response]:
    """All events, and the response of the last one. What holds for every stream is checked."""
    events: list[Any] = list(sdk.responses.create(model="tiny", stream=True, **fields))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == LIFE
    assert events[0].response.status == "in_progress"
    assert events[0].response.output == []
    final: Response = events[-1].response
    assert events[-1].type == f"response.{final.status}"
    assert {event.response.id for event in events if hasattr(event, "response")} == {final.id}
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == final.output
    added = [event.item for event in events if event.type == "response.output_item.added"]
    assert [item.id for item in added] == [item.id for item in done]
    return events, final


def contents(response: Response) -> list[Any]:
    """The output without its made-up ids."""
    made_up = {"id", "call_id"}
    return [item.model_dump(exclude=made_up) for item in response.output]


def test_a_text_that_is_cut(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(
        model="tiny", input="hello", max_output_tokens=6, temperature=0, metadata={"a": "b"}
    )
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.metadata == {"a": "b"}
    assert response.usage is not None
    assert response.usage.output_tokens == 6
    assert response.usage.total_tokens == 6 + response.usage.input_tokens
    assert response._request_id == response.id


def test_a_text_that_ends(scripted: openai.OpenAI, engine: FakeEngine) -> None:
    response = scripted.responses.create(model="tiny", input="hello", instructions="be brief")
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)
    assert (message.status, response.status) == ("completed", "completed")
    assert response.output_text == "hello world"
    assert response.completed_at is not None
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert prompt_of(engine).startswith("<|im_start|>system\nbe brief<|im_end|>")


def test_the_events_of_a_text(scripted: openai.OpenAI) -> None:
    events, final = stream(scripted, input="hello")
    kinds = without_repeats([event.type for event in events])
    assert kinds == [*LIFE, *MESSAGE, "response.completed"]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == final.output_text == "hello world"
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert done.text == "hello world"
    assert {event.item_id for event in deltas} == {done.item_id} == {final.output[0].id}


def test_the_librarys_own_accumulation(sdk: openai.OpenAI) -> None:
    form = {"format": {"type": "json_schema", "name": "city", "schema": CITY}}
    wanted: Any = {"model": "tiny", "input": "hello", "text": form, "temperature": 0}
    plain = sdk.responses.create(**wanted)
    with sdk.responses.stream(**wanted) as events:
        kinds = {event.type for event in events}
        final = events.get_final_response()
    assert "response.output_text.delta" in kinds
    assert final.output_text == plain.output_text
    assert final.status == plain.status == "completed"


@pytest.mark.parametrize("seed", range(3))
def test_a_required_call_parses_and_streams_as_it_is_plain(
    sdk: openai.OpenAI, live: LiveServer, seed: int
) -> None:
    wanted: Any = {"input": "hello", "tools": TOOLS, "tool_choice": "required"}
    wanted["extra_body"] = {"seed": seed}
    plain = sdk.responses.create(model="tiny", **wanted)
    events, streamed = stream(sdk, **wanted)
    assert contents(plain) == contents(streamed)
    for call in streamed.output:
        assert isinstance(call, ResponseFunctionToolCall)
        assert call.name == "weather"
        jsonschema.validate(json.loads(call.arguments), CITY)
        deltas = [
            event.delta
            for event in events
            if event.type == "response.function_call_arguments.delta" and event.item_id == call.id
        ]
        assert "".join(deltas) == call.arguments
    assert plain.status == "completed"
    assert_settles(live)


def test_text_then_a_call(scripted: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = say_text("Well: " + CALL)
    events, final = stream(scripted, input="hello", tools=TOOLS)
    message, call = final.output
    assert final.output_text == "Well: "
    assert isinstance(message, ResponseOutputMessage)
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')
    assert [e.output_index for e in events if e.type == "response.output_item.done"] == [0, 1]
    assert contents(scripted.responses.create(model="tiny", input="x", tools=TOOLS)) == contents(
        final
    )


def test_a_named_tool_and_allowed_tools(scripted: openai.OpenAI, engine: FakeEngine) -> None:
    other = TOOLS[0] | {"name": "other"}
    tools = [*TOOLS, other]
    choice: Any = {"type": "function", "name": "other"}
    scripted.responses.create(model="tiny", input="x", tools=tools, tool_choice=choice)
    assert "weather" not in engine.submitted[-1].sampling.grammar
    assert "other" in engine.submitted[-1].sampling.grammar
    choice = {"type": "allowed_tools", "mode": "required"}
    choice["tools"] = [{"type": "function", "name": "weather"}]
    scripted.responses.create(model="tiny", input="x", tools=tools, tool_choice=choice)
    assert "weather" in engine.submitted[-1].sampling.grammar
    assert "other" not in engine.submitted[-1].sampling.grammar


def in_namespace(name: str, namespace: str = "crm") -> Any:
    return {
        "type": "namespace",
        "name": namespace,
        "description": "About customers.",
        "tools": [TOOLS[0] | {"name": name}, TOOLS[0] | {"name": "other"}],
    }


def test_a_function_of_a_namespace_is_called_by_both_names(
    scripted: openai.OpenAI, engine: FakeEngine
) -> None:
    tools = [*TOOLS, in_namespace("weather")]
    engine.script = say_text(CALL.replace("weather", "crm__weather") + CALL)
    _, final = stream(scripted, input="hello", tools=tools)
    first, second = (item.model_dump(exclude_unset=True) for item in final.output)
    assert (first["name"], first["namespace"]) == ("weather", "crm")
    assert second["name"] == "weather"
    assert "namespace" not in second
    assert final.tools[1].model_dump()["tools"][1]["name"] == "other"


def test_a_model_reads_of_namespaces_in_tools_and_past_calls() -> None:
    template = """{{ {
        "tools": tools | map(attribute="function") | list,
        "calls": messages | selectattr("tool_calls", "defined") | map(attribute="tool_calls")
            | list,
    } | tojson }}"""
    templates = ChatTemplates.compile({"default": template}, tiny_text()[0])
    call = {"type": "function_call", "call_id": "c", "namespace": "crm", "arguments": "{}"}
    body = {
        "model": "tiny",
        "input": [{"role": "user", "content": "hello"}, call | {"name": "weather"}],
        "tools": [in_namespace("weather")],
    }
    engine = FakeEngine()
    with TestClient(build_app(make_model(engine, templates=templates), ApiSettings())) as http:
        assert http.post("/v1/responses", json=body).status_code == 200
    read = json.loads(prompt_of(engine))
    assert [(tool["name"], tool["description"]) for tool in read["tools"]] == [
        ("crm__weather", "About customers.\n\nd"),
        ("crm__other", "d"),
    ]
    assert read["calls"][0][0]["function"]["name"] == "crm__weather"


def test_a_choice_names_a_function_of_a_namespace_as_the_model_does(
    scripted: openai.OpenAI, engine: FakeEngine
) -> None:
    tools = [*TOOLS, in_namespace("weather")]
    choice: Any = {"type": "function", "name": "crm__weather"}
    scripted.responses.create(model="tiny", input="x", tools=tools, tool_choice=choice)
    assert "crm__weather" in engine.submitted[-1].sampling.grammar
    assert "crm__other" not in engine.submitted[-1].sampling.grammar
    choice = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    scripted.responses.create(model="tiny", input="x", tools=tools, tool_choice=choice)
    assert "crm__weather" in engine.submitted[-1].sampling.grammar
    assert "crm__other" not in engine.submitted[-1].sampling.grammar


def test_calls_and_their_results_in_the_input(scripted: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = say_text(CALL)
    first = scripted.responses.create(model="tiny", input="weather?", tools=TOOLS)
    (call,) = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    items: Any = [{"role": "user", "content": "weather?"}, call.model_dump(), result]
    engine.script = say_text("Take an umbrella.")
    second = scripted.responses.create(model="tiny", input=items, tools=TOOLS)
    assert second.output_text == "Take an umbrella."
    by_hand = prompt_of(engine)
    assert "<|im_start|>tool\nrain<|im_end|>" in by_hand
    scripted.responses.create(
        model="tiny", input=[result], tools=TOOLS, previous_response_id=first.id
    )
    assert prompt_of(engine) == by_hand


def test_a_conversation_goes_on_without_the_old_instructions(
    scripted: openai.OpenAI, engine: FakeEngine
) -> None:
    first = scripted.responses.create(model="tiny", input="one", instructions="be brief")
    events, _ = stream(scripted, input="two", previous_response_id=first.id)
    third = scripted.responses.create(
        model="tiny", input="three", previous_response_id=events[-1].response.id, store=False
    )
    prompt = prompt_of(engine)
    assert "be brief" not in prompt
    places = [prompt.index(word) for word in ("one", "hello world", "two", "three")]
    assert places == sorted(places)
    assert prompt.count("hello world") == 2
    with pytest.raises(openai.BadRequestError) as caught:
        scripted.responses.create(model="tiny", input="x", previous_response_id=third.id)
    assert caught.value.param == "previous_response_id"


def test_a_form_for_the_text(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(
        model="tiny",
        input="hello",
        text={"format": {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}},
    )
    jsonschema.validate(json.loads(response.output_text), CITY)
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"


def test_log_probabilities_on_request(sdk: openai.OpenAI) -> None:
    wanted: Any = {"model": "tiny", "input": "hello", "max_output_tokens": 4, "temperature": 0}
    wanted |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (message,) = sdk.responses.create(**wanted).output
    assert isinstance(message, ResponseOutputMessage)
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert [len(token.top_logprobs) for token in part.logprobs] == [2] * 4


def test_reasoning_is_an_item_of_its_own(engine: FakeEngine) -> None:
    engine.script = say_text("<think>hello?</think>world")
    tokenizer, _ = tiny_text()
    template = tiny.CHATML + "{# <think> #}"
    templates = ChatTemplates.compile(read_templates(tiny.metadata()), tokenizer, override=template)
    with TestClient(build_app(make_model(engine, templates=templates), ApiSettings())) as http:
        transport: Any = http
        url = "http://testserver.local/v1"
        sdk = openai.OpenAI(http_client=transport, base_url=url, api_key="none", max_retries=0)
        events, final = stream(sdk, input="x")
        again: Any = [{"role": "user", "content": "x"}, *(i.model_dump() for i in final.output)]
        sdk.responses.create(model="tiny", input=[*again, {"role": "user", "content": "y"}])
    thought, message = final.output
    assert isinstance(thought, ResponseReasoningItem)
    assert thought.content is not None
    assert [part.text for part in thought.content] == ["hello?"]
    assert final.output_text == "world"
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == "hello?"
    assert final.usage is not None
    details = final.usage.output_tokens_details
    assert 0 < details.reasoning_tokens < final.usage.output_tokens
    assert message.type == "message"


def test_stored_responses_are_found_until_deleted(scripted: openai.OpenAI) -> None:
    made = scripted.responses.create(model="tiny", input="hello")
    assert scripted.responses.retrieve(made.id).output == made.output
    scripted.responses.delete(made.id)
    for missing in (made.id, "resp_unknown"):
        with pytest.raises(openai.NotFoundError):
            scripted.responses.retrieve(missing)
        with pytest.raises(openai.NotFoundError):
            scripted.responses.delete(missing)
    unstored = scripted.responses.create(model="tiny", input="hello", store=False)
    with pytest.raises(openai.NotFoundError):
        scripted.responses.retrieve(unstored.id)


def test_the_store_forgets_what_was_not_used_longest(engine: FakeEngine) -> None:
    settings = ApiSettings(max_stored_responses=2)
    with TestClient(build_app(make_model(engine), settings)) as client:

        def create() -> str:
            body = {"model": "tiny", "input": "hello"}
            made: str = client.post("/v1/responses", json=body).json()["id"]
            return made

        first, second = create(), create()
        assert client.get(f"/v1/responses/{first}").status_code == 200
        third = create()
        found = [client.get(f"/v1/responses/{i}").status_code for i in (first, second, third)]
    assert found == [200, 404, 200]


def test_the_store_is_bounded_in_bytes_too(engine: FakeEngine) -> None:
    settings = ApiSettings(max_stored_response_bytes=7000)
    with TestClient(build_app(make_model(engine), settings)) as client:

        def create(text: str) -> str:
            body = {"model": "tiny", "input": text}
            made: str = client.post("/v1/responses", json=body).json()["id"]
            return made

        small, large = create("hello"), create("x" * 1500)
        huge = create("x" * 2000)
        enough = create("hello")
        found = [client.get(f"/v1/responses/{i}").status_code for i in (small, large, huge, enough)]
    assert found == [404, 404, 200, 200]


def test_without_a_store_there_is_no_background(engine: FakeEngine) -> None:
    app = build_app(make_model(engine), ApiSettings(max_stored_responses=0))
    with TestClient(app) as client:
        body = {"model": "tiny", "input": "hello"}
        made = client.post("/v1/responses", json=body)
        assert made.status_code == 200
        assert client.get(f"/v1/responses/{made.json()['id']}").status_code == 404
        refused = client.post("/v1/responses", json=body | {"background": True})
    assert refused.json()["error"]["param"] == "background"


def test_in_the_background(scripted: openai.OpenAI, engine: FakeEngine) -> None:
    begun = scripted.responses.create(model="tiny", input="hello", background=True)
    assert begun.status == "in_progress"
    response = begun
    while response.status == "in_progress":
        response = scripted.responses.retrieve(begun.id)
    assert response.status == "completed"
    assert response.output_text == "hello world"
    assert engine.live == set()
    assert scripted.responses.cancel(begun.id).status == "completed"


def test_cancelling_frees_what_runs(scripted: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = lambda request: []  # waits for ever
    begun = scripted.responses.create(model="tiny", input="hello", background=True)
    with pytest.raises(openai.BadRequestError):
        scripted.responses.create(model="tiny", input="x", previous_response_id=begun.id)
    assert scripted.responses.cancel(begun.id).status == "cancelled"
    assert scripted.responses.retrieve(begun.id).status == "cancelled"
    assert engine.live == set()
    deleted = scripted.responses.create(model="tiny", input="hello", background=True)
    scripted.responses.delete(deleted.id)
    assert scripted.models.list().data  # another turn of the event loop
    assert engine.live == set()


def test_only_what_runs_in_the_background_can_be_cancelled(scripted: openai.OpenAI) -> None:
    made = scripted.responses.create(model="tiny", input="hello")
    with pytest.raises(openai.BadRequestError):
        scripted.responses.cancel(made.id)


@pytest.mark.parametrize("background", [False, True])
def test_a_failure_after_the_beginning(
    scripted: openai.OpenAI, engine: FakeEngine, background: bool
) -> None:
    engine.script = lambda request: [EngineError("secret")]
    if background:
        response = scripted.responses.create(model="tiny", input="hello", background=True)
        while response.status == "in_progress":
            response = scripted.responses.retrieve(response.id)
    else:
        _, response = stream(scripted, input="hello")
    assert response.status == "failed"
    assert response.error is not None
    assert "secret" not in response.error.message
    assert scripted.responses.retrieve(response.id).status == "failed"
    assert engine.live == set()


def test_what_asks_for_nothing_is_accepted(client: Client) -> None:
    body = {
        "model": "tiny",
        "input": "hello",
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "stream_options": {"include_obfuscation": False},
        "text": {"verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "tools": None,
        "user": "u",
    }
    assert client.post("/v1/responses", json=body).status_code == 200
