"""Several models behind one HTTP side: by name, loaded when asked for, and manually."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from rocmforge.api.app import build_app
from rocmforge.api.http.keys import ApiKey, Keyring, Scope, given_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.status import EngineState, EngineStatus
from rocmforge.engine.ipc.totals import Totals
from rocmforge.errors import EngineDied, OutOfMemory, RocmForgeError
from rocmforge.fleet.entry import FleetEntry, ModelPolicy
from rocmforge.fleet.fleet import Fleet, FleetSettings
from rocmforge.fleet.model import ServedModel
from tests.api.fake_engine import RUNNER, FakeEngine, make_model

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {**CHAT, "max_tokens": 5},
}
COMMENTS = 8


@dataclass(eq=False)
class GatedEngine(FakeEngine):
    """Is loaded once a test opens its gate."""

    gate: threading.Event = field(default_factory=threading.Event)
    failure: RocmForgeError | None = None
    opens_after: int | None = None
    looks: int = 0

    @property
    def status(self) -> EngineStatus:
        """What a stream that waits tells in a comment each time; the last look opens the gate."""
        self.looks += 1
        if self.looks == self.opens_after:
            self.gate.set()
        return super().status

    async def wait_ready(self) -> None:
        """Waits for the gate, which belongs to another thread."""
        await asyncio.get_running_loop().run_in_executor(None, self.gate.wait)
        if self.failure is not None:
            raise self.failure
        self.state, self.runner = EngineState.READY, RUNNER


class Models:
    """A server of `tiny`, which is loaded, and `lazy`, which is not."""

    def __init__(self, keys: Keyring | None = None, **limits: Any) -> None:
        self.gate = threading.Event()
        self.failure: RocmForgeError | None = None
        self.opens_after: int | None = None
        self.engines: list[GatedEngine] = []
        served = [
            self._model("tiny", ("alias",), ModelPolicy()),
            self._model("org/lazy", (), ModelPolicy(at_start=False, max_waiting=2)),
        ]
        tiny = served[0].entry
        tiny.engine, tiny.is_new = FakeEngine(), False
        settings = ApiSettings(keep_alive_s=limits.pop("keep_alive_s", 15.0))
        self.fleet = Fleet(served, FleetSettings(**limits))
        self.client: TestClient[Litestar] = TestClient(build_app(self.fleet, settings, keys))

    def _model(self, name: str, aliases: tuple[str, ...], policy: ModelPolicy) -> ServedModel:
        entry = FleetEntry(name, self._make, policy)
        return make_model(
            name=name, aliases=aliases, entry=entry, declared_context=512, declared_hidden_size=8
        )

    def _make(self, totals: Totals) -> GatedEngine:
        engine = GatedEngine(state=EngineState.LOADING, runner=None)
        engine.gate, engine.failure = self.gate, self.failure
        engine.opens_after = self.opens_after
        self.engines.append(engine)
        return engine

    def card(self, name: str) -> Any:
        return self.client.get(f"/v1/models/{name}").json()


@pytest.fixture
def models() -> Iterator[Models]:
    """Loads take no time, unless a test closes the gate."""
    models = Models()
    models.gate.set()
    with models.client:
        yield models
        models.gate.set()


# --- names ---


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("name", "answers_as"), [("tiny", "tiny"), ("alias", "tiny"), ("org/lazy", "org/lazy")]
)
def test_a_name_chooses_the_model(models: Models, path: str, name: str, answers_as: str) -> None:
    response = models.client.post(path, json={"model": name, **BODIES[path]})
    assert response.status_code == 200, response.text
    assert response.json()["model"] == answers_as


@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_name_is_a_404_that_lists_all(models: Models, path: str) -> None:
    response = models.client.post(path, json={"model": "other", **BODIES[path]})
    assert response.status_code == 404
    assert "tiny, alias, org/lazy" in response.text


def test_without_a_choice_of_models_a_name_may_be_left_out_and_else_not(models: Models) -> None:
    response = models.client.post("/tokenize", json={"prompt": "hello"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/tokenize", {"model": "org/lazy", "prompt": "hello"}),
        ("POST", "/detokenize", {"model": "org/lazy", "tokens": [1]}),
        ("POST", "/v1/messages/count_tokens", {"model": "org/lazy", **CHAT}),
        ("GET", "/tokenizer_info?model=org/lazy", None),
        ("GET", "/v1/models/org/lazy", None),
    ],
)
def test_what_needs_no_engine_loads_none(models: Models, method: str, path: str, body: Any) -> None:
    assert models.client.request(method, path, json=body).status_code == 200
    assert models.card("org/lazy")["state"] == "unloaded"


# --- loading on request ---


def test_a_request_that_is_wrong_by_itself_loads_nothing(models: Models) -> None:
    body = {"model": "org/lazy", "prompt": "hello", "temperature": 9}
    assert models.client.post("/v1/completions", json=body).status_code == 400
    assert models.engines == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_a_load_that_fails_in_time_is_a_503_with_its_reason(
    models: Models, path: str, stream: bool
) -> None:
    models.failure = OutOfMemory("It needs 9 GiB.")
    body = {"model": "org/lazy", "stream": stream, **BODIES[path]}
    response = models.client.post(path, json=body)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert "It needs 9 GiB" in response.text
    assert models.card("org/lazy")["status"]["reason"] == "It needs 9 GiB."


def test_the_deadline_of_the_body_counts_while_loading(models: Models) -> None:
    models.gate.clear()
    body = {"model": "org/lazy", "prompt": "hello", "timeout": 0.05}
    response = models.client.post("/v1/completions", json=body)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"


def test_the_deadline_of_the_header_counts_while_loading(models: Models) -> None:
    models.gate.clear()
    response = models.client.post(
        "/v1/embeddings",
        json={"model": "org/lazy", "input": "hello"},
        headers={"x-request-timeout": "0.05"},
    )
    assert response.status_code == 504


def test_errors_are_counted_with_the_model_they_are_about(models: Models) -> None:
    models.failure = OutOfMemory("It needs 9 GiB.")
    models.client.post("/v1/completions", json={"model": "org/lazy", "prompt": "hello"})
    text = models.client.get("/metrics").text
    assert 'request_errors_total{engine="0",model_name="org/lazy",status="503"} 1.0' in text
    assert 'model_load_failures_total{model_name="org/lazy"} 1.0' in text
    assert text.count("# TYPE rocmforge_engine_ready gauge") == 1


# --- streams that wait ---


def data_of(text: str) -> list[Any]:
    """The data of all events but `[DONE]`, whatever else they say."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line[:6] == "data: "]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(": ")]


@pytest.fixture
def waiting() -> Iterator[Models]:
    """Streams may be silent for a moment only, and the gate opens after some comments."""
    models = Models(keep_alive_s=0.02)
    models.opens_after = COMMENTS
    with models.client:
        yield models
        models.gate.set()


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_that_waits_is_kept_alive_and_then_like_any_other(
    waiting: Models, path: str
) -> None:
    body = {"model": "org/lazy", "stream": True, **BODIES[path]}
    late = waiting.client.post(path, json=body)
    assert late.status_code == 200
    assert late.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert any("org/lazy is loading: weights 25%" in line for line in comments(late.text))
    usual = waiting.client.post(path, json=body)
    assert late.headers.keys() >= usual.headers.keys() - {"x-request-id", "request-id"}
    assert [event.keys() for event in data_of(late.text)] == [
        event.keys() for event in data_of(usual.text)
    ]


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_that_waited_in_vain_ends_with_the_reason(waiting: Models, path: str) -> None:
    waiting.failure = OutOfMemory("It needs 9 GiB.")
    body = {"model": "org/lazy", "stream": True, **BODIES[path]}
    response = waiting.client.post(path, json=body)
    (event,) = data_of(response.text)
    error = event if "message" in event else event["error"]
    assert "It needs 9 GiB" in error["message"]


def test_a_stream_is_refused_with_a_status_however_long_it_takes_to_find_out() -> None:
    models = Models(keep_alive_s=0.0)
    body = {"model": "org/lazy", "stream": True, "prompt": "hello " * 3000}  # for a worker thread
    with models.client:
        response = models.client.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert models.engines == [], "nothing is loaded for it"


def test_a_mistake_that_shows_after_the_wait_is_the_last_event(waiting: Models) -> None:
    body = {"model": "org/lazy", "stream": True, "prompt": "hello", "typical_p": 0.5}
    response = waiting.client.post("/v1/completions", json=body)
    (event,) = data_of(response.text)
    assert "The backend 'fake' has no logits processor" in event["error"]["message"]
    assert waiting.fleet.find("org/lazy").entry.users == 0


# --- manually ---


def test_loading_and_unloading_answer_with_the_model_and_may_be_repeated(models: Models) -> None:
    post = models.client.post
    for _ in range(2):
        loaded = post("/v1/models/org/lazy/load")
        assert loaded.status_code == 200
        assert (loaded.json()["id"], loaded.json()["state"]) == ("org/lazy", "ready")
    assert len(models.engines) == 1
    for _ in range(2):
        assert post("/v1/models/org/lazy/unload").json()["state"] == "unloaded"
    assert models.engines[0].state is EngineState.STOPPED


def test_programs_that_know_llama_cpp_find_what_they_know(models: Models) -> None:
    for verb, value in (("load", "loaded"), ("unload", "unloaded")):
        response = models.client.post(f"/models/{verb}", json={"model": "org/lazy"})
        assert response.json() == {"success": True}
        assert models.card("org/lazy")["status"]["value"] == value


@pytest.mark.parametrize("path", ["other/load", "tiny/reload", "load", "tiny"])
def test_other_commands_and_models_are_a_404(models: Models, path: str) -> None:
    response = models.client.post(f"/v1/models/{path}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_a_load_by_hand_that_fails_says_why(models: Models) -> None:
    models.failure = OutOfMemory("It needs 9 GiB.")
    response = models.client.post("/v1/models/org/lazy/load")
    assert response.status_code == 503
    assert "It needs 9 GiB" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("key", "status"), [(None, 401), ("wrong-key", 401), ("user-key-1", 403), ("admin-key", 200)]
)
@pytest.mark.parametrize("path", ["/v1/models/tiny/load", "/models/unload"])
def test_it_takes_an_administrators_key(path: str, key: str | None, status: int) -> None:
    user = replace(given_keys(["user-key-1"])[0], name="user", scope=Scope.USER)
    keys: tuple[ApiKey, ...] = (*given_keys(["admin-key"]), user)
    models = Models(Keyring(keys))
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with models.client:
        response = models.client.post(path, json={"model": "tiny"}, headers=headers)
    assert response.status_code == status


# --- what is told of them ---


def test_lists_show_all_models_and_their_states(models: Models) -> None:
    cards = models.client.get("/v1/models").json()["data"]
    assert [(card["id"], card["state"], card["max_model_len"]) for card in cards] == [
        ("tiny", "ready", 2048),
        ("alias", "ready", 2048),
        ("org/lazy", "unloaded", 512),
    ]


def test_health_tells_of_each_model(models: Models) -> None:
    models.failure = EngineDied("It fell over.")
    models.client.post("/v1/models/org/lazy/load")
    told = models.client.get("/health").json()["models"]
    assert [(m["model"], m["state"], m["last_error"]) for m in told] == [
        ("tiny", "ready", None),
        ("org/lazy", "failed", "It fell over."),
    ]


def test_models_that_are_loaded_on_request_do_not_hold_the_server_up(models: Models) -> None:
    assert models.client.get("/ready").status_code == 200
    models.client.post("/v1/models/tiny/unload")
    assert models.client.get("/ready").status_code == 200


def test_a_model_of_the_start_that_restarts_does(models: Models) -> None:
    engine = models.fleet.find("tiny").entry.engine
    assert isinstance(engine, FakeEngine)
    engine.state = EngineState.RESTARTING
    response = models.client.get("/ready")
    assert response.status_code == 503
    assert response.json()["state"] == "restarting"


def test_the_document_names_all_models_and_commands(models: Models) -> None:
    document = models.client.get("/openapi.json").json()
    (parameter,) = document["paths"]["/v1/models/{command}"]["post"]["parameters"]
    assert "org/lazy/unload" in parameter["schema"]["enum"]
    names = json.dumps(document["components"]["schemas"]["ChatRequest"]["properties"]["model"])
    assert "org/lazy" in names
