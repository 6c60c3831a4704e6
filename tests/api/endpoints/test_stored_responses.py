"""What clients come back to: streams from the background, and the input of a response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from rocmforge.api.http.settings import ApiSettings
from rocmforge.errors import EngineError
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.api.live import assert_settles
from tests.api.sse import events as parsed
from tests.support.processes.server import LiveServer

PATH = "/v1/responses"
HELLO: dict[str, Any] = {"model": "tiny", "input": "hello"}
TOKENS = 40


@pytest.fixture
def sdk(slow: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{slow.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def begun(client: Client) -> str:
    """The id of a response that was streamed from the background."""
    body = client.post(PATH, json=HELLO | {"background": True, "stream": True}).text
    found: str = events(body)[0]["response"]["id"]
    return found


def events(body: str) -> list[Any]:
    """The data of a stream's events."""
    lines = [line for line in body.splitlines() if not line.startswith("event: ")]
    return parsed("\n".join(lines))


def begin(sdk: openai.OpenAI, **fields: Any) -> tuple[str, list[Any]]:
    """Begins in the background and breaks off after ten events."""
    seen = []
    with sdk.responses.create(
        model="tiny",
        input="hello",
        background=True,
        stream=True,
        temperature=0,
        max_output_tokens=TOKENS,
        **fields,
    ) as stream:
        for event in stream:
            seen.append(event)
            if len(seen) == 10:
                break
    first: Any = seen[0]
    return first.response.id, seen


def test_a_stream_that_broke_off_goes_on_where_it_was(sdk: openai.OpenAI, slow: LiveServer) -> None:
    response_id, seen = begin(sdk)
    last: Any = seen[-1]
    rest = list(
        sdk.responses.retrieve(response_id, stream=True, starting_after=last.sequence_number)
    )
    again = list(sdk.responses.retrieve(response_id, stream=True))
    assert [event.sequence_number for event in again] == list(range(len(again)))
    assert [*seen, *rest] == again
    final: Any = again[-1]
    assert final.type == "response.incomplete"
    assert sdk.responses.retrieve(response_id).output == final.response.output
    deltas = [e.delta for e in again if e.type == "response.output_text.delta"]
    assert "".join(deltas) == final.response.output_text
    plain = sdk.responses.create(
        model="tiny", input="hello", temperature=0, max_output_tokens=TOKENS
    )
    assert plain.output_text == final.response.output_text
    assert_settles(slow)


def test_two_streams_of_one_response_get_the_same(sdk: openai.OpenAI) -> None:
    response_id, _ = begin(sdk)
    with (
        sdk.responses.retrieve(response_id, stream=True) as one,
        sdk.responses.retrieve(response_id, stream=True) as other,
    ):
        pairs = list(zip(one, other, strict=True))
    assert all(left == right for left, right in pairs)


def test_cancelling_ends_the_streams_too(sdk: openai.OpenAI, slow: LiveServer) -> None:
    response_id, _ = begin(sdk, extra_body={"max_output_tokens": 20_000})
    with sdk.responses.retrieve(response_id, stream=True) as stream:
        next(iter(stream))
        assert sdk.responses.cancel(response_id).status == "cancelled"
        assert "response.completed" not in [event.type for event in stream]
    assert_settles(slow)


def test_a_failure_in_the_background_is_the_last_event(client: Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [EngineError("secret")]
    body = client.post(PATH, json=HELLO | {"background": True, "stream": True}).text
    seen = events(body)
    assert [event["type"] for event in seen][-1] == "response.failed"
    assert "secret" not in body
    again = client.get(f"{PATH}/{seen[0]['response']['id']}", params={"stream": "true"})
    assert events(again.text) == seen
    assert engine.live == set()


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_fit_into_the_store_is_not_begun(engine: FakeEngine, stream: bool) -> None:
    app = build_app(make_model(engine), ApiSettings(max_stored_response_bytes=1))
    with Client(app) as client:
        answer = client.post(PATH, json=HELLO | {"background": True, "stream": stream})
    assert answer.status_code == 400
    assert "background" in answer.json()["error"]["message"]
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("fields", "query", "param"),
    [
        ({}, {"stream": "true"}, "stream"),
        ({"background": True}, {"stream": "true"}, "stream"),
        ({}, {"stream": "perhaps"}, "stream"),
        ({}, {"starting_after": "3"}, "starting_after"),
        ({}, {"stream": "true", "starting_after": "-1"}, "starting_after"),
        ({}, {"stream": "true", "starting_after": "x"}, "starting_after"),
    ],
)
def test_streams_that_there_are_not_are_refused(
    client: Client, fields: dict[str, Any], query: dict[str, str], param: str
) -> None:
    made = client.post(PATH, json=HELLO | fields).json()["id"]
    response = client.get(f"{PATH}/{made}", params=query)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_past_the_end_there_is_nothing(client: Client, begun: str) -> None:
    response = client.get(f"{PATH}/{begun}", params={"stream": "true", "starting_after": "999"})
    assert (response.status_code, events(response.text)) == (200, [])


# --- input items ---


def made_of(client: Client, given: Any) -> Any:
    """Makes a response of this input."""
    return client.post(PATH, json=HELLO | {"input": given}).json()["id"]


def listed(client: Client, response_id: str, **query: Any) -> Any:
    return client.get(f"{PATH}/{response_id}/input_items", params=query)


def test_a_text_is_one_message(client: Client) -> None:
    page = listed(client, made_of(client, "hello")).json()
    (item,) = page["data"]
    assert item == {
        "id": item["id"],
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "hello"}],
    }
    assert (page["first_id"], page["last_id"]) == (item["id"], item["id"])
    assert page["has_more"] is False


def test_items_are_listed_as_they_were_sent(client: Client) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "rain"}
    said = {"role": "assistant", "content": "well"}
    page = listed(client, made_of(client, [said, call, result]), order="asc").json()
    message, *rest = page["data"]
    assert message["content"] == [{"type": "output_text", "text": "well", "annotations": []}]
    for item, sent in zip(rest, (call, result), strict=True):
        assert {name: item[name] for name in sent} == sent
    assert len({item["id"] for item in page["data"]}) == 3


def test_the_sdk_turns_the_pages(slow: LiveServer, sdk: openai.OpenAI) -> None:
    texts = [f"message {number}" for number in range(7)]
    given: Any = [{"role": "user", "content": text} for text in texts]
    made: Response = sdk.responses.create(model="tiny", input=given, max_output_tokens=1)
    for order, expected in (("asc", texts), ("desc", texts[::-1])):
        pages: Any = sdk.responses.input_items.list(made.id, limit=3, order=order)  # type: ignore[arg-type]
        assert [item.content[0].text for item in pages] == expected
    assert len(sdk.responses.input_items.list(made.id, limit=3).data) == 3


@pytest.mark.parametrize(
    ("query", "param", "says"),
    [
        ({"limit": 0}, "limit", ">= 1"),
        ({"limit": 101}, "limit", "<= 100"),
        ({"limit": "x"}, "limit", "Expected `int`"),
        ({"order": "up"}, "order", "'asc', 'desc'"),
        ({"after": "msg_none"}, "after", "no input item of this response"),
    ],
)
def test_pages_that_there_are_not_are_refused(
    client: Client, query: dict[str, Any], param: str, says: str
) -> None:
    response = listed(client, made_of(client, "hello"), **query)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert says in response.json()["error"]["message"]


def test_a_response_that_is_not_there_has_no_input(client: Client) -> None:
    assert listed(client, "resp_none").json()["error"]["code"] == "response_not_found"
    made = made_of(client, "hello")
    assert client.delete(f"{PATH}/{made}").json()["deleted"] is True
    assert listed(client, made).status_code == 404


def test_the_labels_of_a_request_are_repeated(client: Client) -> None:
    labels = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k"}
    made = client.post(PATH, json=HELLO | labels | {"metadata": {"a": "b"}, "service_tier": "auto"})
    stored = client.get(f"{PATH}/{made.json()['id']}").json()
    assert {name: stored[name] for name in labels} == labels
    assert (stored["metadata"], stored["service_tier"]) == ({"a": "b"}, "default")


def test_a_stream_from_the_background_survives_its_client(
    slow: LiveServer, sdk: openai.OpenAI
) -> None:
    response_id, _ = begin(sdk)
    response = sdk.responses.retrieve(response_id)
    while response.status == "in_progress":
        response = sdk.responses.retrieve(response_id)
    assert response.status == "incomplete"
    assert response.usage is not None
    assert response.usage.output_tokens == TOKENS
    assert slow.get("/health").status_code == 200
    assert_settles(slow)
