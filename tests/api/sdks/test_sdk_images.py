"""Images through the libraries of OpenAI and Anthropic, plain and streamed, over a real socket."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from threading import Thread

import anthropic
import openai
import pytest
import uvicorn

from rocmforge.api.http.settings import ApiSettings
from rocmforge.commands.http.server import http_config, listen
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.support.files.pictures import data_address, encoded, picture
from tests.support.models.vision import VISION, shown, vision_text

pytestmark = pytest.mark.slow

FILE = encoded(picture(64, 32))
URL = data_address(FILE)
ROWS = "<around>r1c1[1]<around>r1c2[1]\n\n<around>w[1]<around>"


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def address(engine: FakeEngine) -> Iterator[str]:
    """A server, in a thread of this process, of a model that takes images."""
    tokenizer, templates = vision_text()
    model = make_model(engine, tokenizer=tokenizer, templates=templates, vision=VISION)
    socket = listen("127.0.0.1", 0)
    server = uvicorn.Server(http_config(build_app(model, ApiSettings()), receive_timeout_s=30.0))
    thread = Thread(target=server.run, args=([socket],))
    thread.start()
    yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def sdk(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(address: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client:
        yield client


MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "see "},
            {"type": "image_url", "image_url": {"url": URL, "detail": "high"}},
        ],
    }
]
CLAUDES: list[anthropic.types.MessageParam] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "see "},
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": "image/png",
                    "data": b64encode(FILE).decode(),
                },
            },
        ],
    }
]


def assert_seen(engine: FakeEngine) -> int:
    """The image was in the last prompt; returns how many tokens that had."""
    prompt = engine.submitted[-1].prompt
    assert f"see {ROWS}<|im_end|>" in shown(prompt, vision_text()[0])
    return len(prompt)


def test_openais_chat(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    completion = sdk.chat.completions.create(model="tiny", messages=MESSAGES)
    assert completion.choices[0].message.content == "hello world"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == assert_seen(engine)


def test_openais_chat_streamed(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    stream = sdk.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [*stream]
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == "hello world"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == assert_seen(engine)


@pytest.mark.parametrize("streams", [False, True])
def test_openais_responses(sdk: openai.OpenAI, engine: FakeEngine, streams: bool) -> None:
    given: openai.types.responses.ResponseInputParam = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see "},
                {"type": "input_image", "image_url": URL, "detail": "auto"},
            ],
        }
    ]
    response: openai.types.responses.Response
    if streams:
        with sdk.responses.stream(model="tiny", input=given) as stream:
            response = stream.get_final_response()
    else:
        response = sdk.responses.create(model="tiny", input=given)
    assert response.output_text == "hello world"
    assert response.usage is not None
    assert response.usage.input_tokens == assert_seen(engine)
    (item,) = sdk.responses.input_items.list(response.id).data
    assert item.type == "message"
    assert [part.type for part in item.content] == ["input_text", "input_image"]


@pytest.mark.parametrize("streams", [False, True])
def test_anthropics_messages(
    claude: anthropic.Anthropic, engine: FakeEngine, streams: bool
) -> None:
    message: anthropic.types.Message
    if streams:
        with claude.messages.stream(model="tiny", max_tokens=9, messages=CLAUDES) as stream:
            message = stream.get_final_message()
    else:
        message = claude.messages.create(model="tiny", max_tokens=9, messages=CLAUDES)
    (block,) = message.content
    assert block.type == "text"
    assert block.text == "hello world"
    length = assert_seen(engine)
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == length
    counted = claude.messages.count_tokens(model="tiny", messages=CLAUDES)
    assert counted.input_tokens == length


def test_an_image_that_cannot_be_read_is_a_bad_request_error(sdk: openai.OpenAI) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": data_address(FILE[:80])}}],
        }
    ]
    with pytest.raises(openai.BadRequestError, match="is a damaged PNG file") as caught:
        sdk.chat.completions.create(model="tiny", messages=messages)
    assert caught.value.param == "messages[0].content[0].image_url"
