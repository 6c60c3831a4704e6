"""Images in requests of every kind: what reaches the engine, and what is refused."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient
from prometheus_client.parser import text_string_to_metric_families

from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.prompt import Prompt
from rocmforge.fleet.entry import FleetEntry
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.support.files.pictures import RED, data_address, encoded, picture
from tests.support.models.vision import AROUND, TEMPLATE, VISION, shown, vision_text

WIDE = encoded(picture(64, 32))  # two tiles and the whole
RED_SQUARE = encoded(picture(20, 20, color=RED))
ROWS = "<around>r1c1[1]<around>r1c2[1]\n\n<around>w[1]<around>"
WHOLE = "<around>w[1]<around>"

pytestmark = pytest.mark.slow  # processes read the images

Client = TestClient[Litestar]


class _ImageHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(WIDE)))
        self.end_headers()
        self.wfile.write(WIDE)

    def log_message(self, *_: Any) -> None:
        """Keeps quiet."""


@pytest.fixture(scope="module")
def image_host() -> Iterator[str]:
    """A host with an image, and its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _ImageHandler)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"images.test:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def served(image_host: str) -> Iterator[tuple[Client, FakeEngine]]:
    """A model that takes images, and what its engine gets."""
    engine = FakeEngine()
    tokenizer, templates = vision_text()
    model = make_model(engine, tokenizer=tokenizer, templates=templates, vision=VISION)
    settings = ApiSettings(image_hosts=(f"{image_host}=127.0.0.1",))
    with TestClient(build_app(model, settings)) as client:
        yield client, engine


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def image(data: bytes = WIDE, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_address(data), **fields}}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def post(client: Client, messages: list[dict[str, Any]], **fields: Any) -> Any:
    return client.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": messages, **fields}
    )


def last_prompt(engine: FakeEngine) -> Prompt:
    return engine.submitted[-1].prompt


def prompt_text(engine: FakeEngine) -> str:
    return shown(last_prompt(engine), vision_text()[0])


def test_an_image_stands_where_the_template_shows_it(served: tuple[Client, FakeEngine]) -> None:
    client, engine = served
    answer = post(client, user(text("see "), image(), text(" there")))
    assert answer.status_code == 200
    assert prompt_text(engine) == (
        f"<|im_start|>user\nsee {ROWS} there<|im_end|>\n<|im_start|>assistant\n"
    )
    assert answer.json()["usage"]["prompt_tokens"] == len(last_prompt(engine))


def test_the_address_of_an_image_may_stand_alone(served: tuple[Client, FakeEngine]) -> None:
    client, engine = served
    bare = {"type": "image_url", "image_url": data_address(WIDE)}
    assert post(client, user(text("see "), bare)).status_code == 200
    alone = last_prompt(engine)
    assert post(client, user(text("see "), image())).status_code == 200
    assert [span.identity for span in alone.images] == [
        span.identity for span in last_prompt(engine).images
    ]
    assert len(alone.images) == 3


def test_several_images_and_turns_keep_their_order(served: tuple[Client, FakeEngine]) -> None:
    client, engine = served
    messages = [
        *user(image(RED_SQUARE, detail="low"), image(), text("two")),
        {"role": "assistant", "content": "yes"},
        *user(text("again "), image(RED_SQUARE, detail="low")),
    ]
    assert post(client, messages).status_code == 200
    assert prompt_text(engine) == (
        f"<|im_start|>user\n{WHOLE}{ROWS}two<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        f"<|im_start|>user\nagain {WHOLE}<|im_end|>\n<|im_start|>assistant\n"
    )
    spans = last_prompt(engine).images
    assert spans[0].identity == spans[-1].identity
    assert len({span.identity for span in spans}) == 2  # the tiles of the gradient are equal


def test_images_of_low_detail_are_not_cut_into_tiles(served: tuple[Client, FakeEngine]) -> None:
    client, engine = served
    lengths = {}
    for detail in ("low", "high", "auto"):
        assert post(client, user(image(detail=detail))).status_code == 200
        lengths[detail] = len(last_prompt(engine).images)
    assert lengths == {"low": 1, "high": 3, "auto": 3}


def test_text_of_a_client_is_never_an_image(served: tuple[Client, FakeEngine]) -> None:
    client, engine = served
    assert post(client, user(text("a<image>b<around>"), image())).status_code == 200
    prompt = last_prompt(engine)
    assert prompt_text(engine).startswith(f"<|im_start|>user\na<image>b<around>{ROWS}")
    assert len(prompt.images) == 3
    assert prompt.token_ids.count(VISION.placeholder) == 3
    assert prompt.token_ids.count(AROUND) == 4  # those of the image
    assert post(client, user(text("<image>"))).status_code == 200
    assert last_prompt(engine).images == ()


def test_tokens_are_those_of_the_text_with_the_tokens_in_it(
    served: tuple[Client, FakeEngine],
) -> None:
    client, engine = served
    tokenizer, _ = vision_text()
    assert post(client, user(text("hello "), image(), text("world"))).status_code == 200
    whole = tokenizer.encode(
        prompt_text(engine).replace("[1]", "<image>"), parse_special=True, add_bos=False
    )
    assert [*last_prompt(engine).token_ids] == whole


@pytest.mark.parametrize(
    "change",
    [
        lambda template: template.replace("{{ '<image>' }}", ""),
        lambda template: template.replace("{{ '<image>' }}", "{{ '<image><image>' }}"),
        lambda _: "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    ],
)
def test_a_template_that_does_not_show_each_image_once_is_told(
    change: Callable[[str], str],
) -> None:
    tokenizer, templates = vision_text(change(TEMPLATE))
    model = make_model(tokenizer=tokenizer, templates=templates, vision=VISION)
    with TestClient(build_app(model, ApiSettings())) as client:
        answer = post(client, user(text("x"), image()))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"


def test_a_fetched_image_is_as_good(served: tuple[Client, FakeEngine], image_host: str) -> None:
    client, engine = served
    part = {"type": "image_url", "image_url": {"url": f"http://{image_host}/a.png"}}
    assert post(client, user(part)).status_code == 200
    from_host = last_prompt(engine)
    assert post(client, user(image())).status_code == 200
    assert from_host == last_prompt(engine)


def test_responses_take_images_and_go_on_from_them(served: tuple[Client, FakeEngine]) -> None:
    client, engine = served
    part = {"type": "input_image", "image_url": data_address(WIDE), "detail": "low"}
    message = {"role": "user", "content": [{"type": "input_text", "text": "see "}, part]}
    first = client.post("/v1/responses", json={"model": "tiny", "input": [message]})
    assert first.status_code == 200
    assert prompt_text(engine).startswith(f"<|im_start|>user\nsee {WHOLE}<|im_end|>")
    body = {"model": "tiny", "input": "and?", "previous_response_id": first.json()["id"]}
    assert client.post("/v1/responses", json=body).status_code == 200
    assert f"see {WHOLE}<|im_end|>" in prompt_text(engine)
    items = client.get(f"/v1/responses/{first.json()['id']}/input_items").json()["data"]
    assert items[0]["content"][1] == part


def test_messages_take_images_also_from_tools(
    served: tuple[Client, FakeEngine], image_host: str
) -> None:
    client, engine = served
    sources = [
        {"type": "base64", "media_type": "image/png", "data": b64encode(WIDE).decode()},
        {"type": "url", "url": f"http://{image_host}/a.png"},
    ]
    blocks = [{"type": "image", "source": source} for source in sources]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [blocks[0]]}
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    body = {
        "model": "tiny",
        "max_tokens": 5,
        "messages": [
            {"role": "user", "content": [*blocks, text("two")]},
            {"role": "assistant", "content": [text("I look"), use]},
            {"role": "user", "content": [result]},
        ],
    }
    answer = client.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    assert prompt_text(engine).startswith(f"<|im_start|>user\n{ROWS}{ROWS}two<|im_end|>")
    assert f"<|im_start|>tool\n{ROWS}<|im_end|>" in prompt_text(engine)
    usage = answer.json()["usage"]
    taken = usage["input_tokens"] + usage["cache_read_input_tokens"]
    del body["max_tokens"]
    counted = client.post("/v1/messages/count_tokens", json=body).json()
    assert counted == {"input_tokens": taken} == {"input_tokens": len(last_prompt(engine))}


def test_tokenize_counts_what_images_cost(served: tuple[Client, FakeEngine]) -> None:
    client, engine = served
    messages = user(text("see "), image())
    assert post(client, messages).status_code == 200
    answer = client.post("/tokenize", json={"model": "tiny", "messages": messages}).json()
    assert answer["tokens"] == [*last_prompt(engine).token_ids]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "must begin with https:// or http://"),
        ("cat.png", "Send an image of your own as a data: address (data:image/png;base64,"),
        (data_address(b""), "is an empty file"),
        (data_address(b"<svg/>"), "is an SVG drawing, which is not read"),
        (data_address(WIDE[:99]), "is a damaged PNG file"),
        ("data:image/png;base64,?", "is not valid base64"),
        ("https://example.com/a.png", "this server fetches none from example.com"),
        ("http://169.254.169.254/latest/meta-data", "fetches none from 169.254.169.254"),
    ],
)
def test_an_image_that_cannot_be_had_is_refused_by_place_and_reason(
    served: tuple[Client, FakeEngine], url: str, reason: str
) -> None:
    client, engine = served
    before = len(engine.submitted)
    bad = {"type": "image_url", "image_url": {"url": url}}
    answer = post(client, user(text("see"), image(), bad), stream=True)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "messages[0].content[2].image_url"
    assert error["message"].startswith("The image 'messages[0].content[2].image_url' ")
    assert reason in error["message"]
    assert len(engine.submitted) == before


def test_anthropics_clients_are_told_the_block(served: tuple[Client, FakeEngine]) -> None:
    client, _ = served
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    body = {
        "model": "tiny",
        "max_tokens": 5,
        "system": "s",
        "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
    }
    answer = client.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert "'messages[0].content[0].source' is not of a known" in answer.json()["error"]["message"]


def test_too_many_images_are_refused(served: tuple[Client, FakeEngine]) -> None:
    client, _ = served
    answer = post(client, user(*[image(RED_SQUARE)] * 65))
    assert answer.status_code == 400
    assert "has 65 images, but it may have 64" in answer.json()["error"]["message"]


def test_files_of_one_request_have_a_limit_together(
    served: tuple[Client, FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = served
    monkeypatch.setattr("rocmforge.api.images.pictures.MAX_BYTES", 2 * len(WIDE))
    assert post(client, user(*[image()] * 2)).status_code == 200
    answer = post(client, user(*[image()] * 3))
    assert answer.status_code == 400
    assert "is too much" in answer.json()["error"]["message"]


def test_a_data_address_of_100_mb_is_too_large_a_body(served: tuple[Client, FakeEngine]) -> None:
    client, _ = served
    body = b'{"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url", '
    body += b'"image_url": {"url": "data:image/png;base64,' + b"A" * 100_000_000 + b'"}}]}]}'
    answer = client.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413


def test_a_model_without_a_tower_refuses_images_before_it_is_loaded(
    image_host: str,
) -> None:
    def make_engine(_: object) -> FakeEngine:
        raise AssertionError("it is loaded")

    model = make_model(entry=FleetEntry("tiny", make_engine))
    for wanted in (data_address(b"nonsense"), f"http://{image_host}/"):
        with TestClient(build_app(model, ApiSettings())) as client:
            answer = post(client, user({"type": "image_url", "image_url": {"url": wanted}}))
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "The model tiny takes no images, only text."


def test_models_say_that_they_take_images(served: tuple[Client, FakeEngine]) -> None:
    client, _ = served
    (model, *_) = client.get("/v1/models").json()["data"]
    assert "images" in model["capabilities"]


def test_metrics_count_images_their_tokens_and_seconds(served: tuple[Client, FakeEngine]) -> None:
    client, _ = served

    def values() -> dict[str, float]:
        families = text_string_to_metric_families(client.get("/metrics").text)
        return {s.name: s.value for f in families for s in f.samples if "image" in s.name}

    before = values()
    assert post(client, user(image(), image(RED_SQUARE, detail="low"))).status_code == 200
    after = values()
    assert after["rocmforge_images_total"] - before["rocmforge_images_total"] == 2
    assert after["rocmforge_image_tokens_total"] - before["rocmforge_image_tokens_total"] == 4
    name = "rocmforge_image_read_seconds"
    assert after[f"{name}_count"] - before[f"{name}_count"] == 1
    assert after[f"{name}_sum"] > before[f"{name}_sum"]
