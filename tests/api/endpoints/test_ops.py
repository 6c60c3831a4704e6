"""/health, /ready, /version and /v1/models, while the engine comes and goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from litestar.testing import TestClient

from rocmforge import __version__
from rocmforge.api.app import build_app as build_fleet_app
from rocmforge.api.http.keys import Keyring, given_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.status import EngineState
from rocmforge.errors import Draining, NotReady
from rocmforge.fleet.fleet import Fleet
from rocmforge.sensors.kernel_log import KernelEvent
from rocmforge.sensors.watch import NO_SIGHT, DeviceEvent, DeviceWatch
from tests.api.conftest import Client
from tests.api.fake_engine import MAX_CONTEXT, FakeEngine, build_app, make_model


def test_a_ready_server_says_so(client: Client) -> None:
    response = client.get("/ready")
    assert response.status_code == 200
    assert response.json()["state"] == "ready"


def test_loading_is_a_503_with_progress(client: Client, engine: FakeEngine) -> None:
    engine.state, engine.runner = EngineState.LOADING, None
    response = client.get("/ready")
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json() == {
        "ready": False,
        "state": "loading",
        "stage": "weights",
        "progress": 0.25,
        "restarts": 0,
    }


@pytest.mark.parametrize(
    "state", [EngineState.RESTARTING, EngineState.DRAINING, EngineState.STOPPED]
)
def test_an_engine_that_takes_no_requests_is_not_ready(
    client: Client, engine: FakeEngine, state: EngineState
) -> None:
    engine.state = state
    assert client.get("/ready").status_code == 503


@pytest.mark.parametrize("state", list(EngineState))
def test_the_http_side_is_alive_whatever_the_engine_does(
    client: Client, engine: FakeEngine, state: EngineState
) -> None:
    engine.state, engine.runner = state, None
    response = client.get("/health")
    assert response.status_code == 200
    assert response.json()["engine"] == state.value


def test_health_says_what_went_wrong_when_and_how_often(client: Client, engine: FakeEngine) -> None:
    assert client.get("/health").json()["last_error"] is None
    engine.last_error, engine.restarts = "The engine process was killed by SIGKILL.", 2
    engine.state, engine.silence_s = EngineState.RESTARTING, 12.5
    response = client.get("/health")
    assert response.status_code == 200, "it is being repaired"
    body = response.json()
    for told in (body, body["models"][0]):
        assert told["last_error"] == engine.last_error
        assert (told["last_error_at"], told["restarts"]) == (1_700_000_000.25, 2)
        assert told["silent_s"] == 12.5
    assert body["status"] == "degraded"


def test_health_gives_strangers_a_code_and_holders_of_a_key_the_text(engine: FakeEngine) -> None:
    engine.last_error, engine.is_fallback = "Cannot open /opt/secret/model.gguf.", True
    with TestClient(
        build_app(make_model(engine), ApiSettings(), Keyring(given_keys(["a-long-key"])))
    ) as client:
        by_key = {
            key: client.get("/health", headers={"x-api-key": key})
            for key in ("", "wrong-key", "a-long-key")
        }
    for key, answer in by_key.items():
        is_known = key == "a-long-key"
        body = answer.json()
        assert (answer.status_code, body["is_fallback"]) == (200, True)
        assert bool(body["fallback_reason"]) is is_known
        for told in (body, body["models"][0]):
            assert told["last_error_code"] == "engine_died"
            assert told["last_error"] == (engine.last_error if is_known else None)
        assert ("secret" in answer.text) is is_known


def test_health_gives_the_kernels_words_about_a_device_to_holders_of_a_key_only(
    engine: FakeEngine,
) -> None:
    said = DeviceEvent(at=1.5, device="0000:03:00.0", event=KernelEvent.RESET, text="pid 7 secret")
    watch = DeviceWatch()
    watch.sight = replace(NO_SIGHT, events=(said,))
    fleet = Fleet([make_model(engine)], watch=watch)
    keys = Keyring(given_keys(["a-long-key"]))
    with TestClient(build_fleet_app(fleet, ApiSettings(), keys)) as client:
        for key, text in (("wrong-key", ""), ("a-long-key", said.text)):
            (told,) = client.get("/health", headers={"x-api-key": key}).json()["events"]
            assert told == {"at": 1.5, "device": said.device, "event": "reset", "text": text}


def test_a_device_that_hangs_for_good_is_not_alive(client: Client, engine: FakeEngine) -> None:
    assert client.get("/health").json()["status"] == "ok"
    engine.is_wedged, engine.state = True, EngineState.RESTARTING
    response = client.get("/health")
    assert response.status_code == 503
    assert response.json()["status"] == "wedged"
    assert client.get("/ready").status_code == 503


def test_health_names_the_backend_and_owns_up_to_a_fallback(
    client: Client, engine: FakeEngine
) -> None:
    engine.is_fallback = True
    body = client.get("/health").json()
    assert (body["backend"], body["device"]) == ("fake", "fake device")
    assert body["is_fallback"] is True
    assert body["fallback_reason"] == "no GPU"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_load_balancers_may_ask_with_head(client: Client, path: str) -> None:
    response = client.head(path)
    assert response.status_code == 200
    assert response.content == b""


def test_requests_while_loading_are_a_503_with_retry_after(
    client: Client, engine: FakeEngine
) -> None:
    engine.state, engine.runner = EngineState.LOADING, None
    response = client.post("/v1/completions", json={"model": "tiny", "prompt": "hello"})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert response.json()["error"]["code"] == "model_not_ready"


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (NotReady("restarting", retry_after_s=5), "model_not_ready"),
        (Draining("bye", retry_after_s=5), "shutting_down"),
    ],
)
def test_an_engine_that_refuses_is_a_503(
    client: Client, engine: FakeEngine, refusal: NotReady | Draining, code: str
) -> None:
    engine.refuses = refusal
    response = client.post("/v1/completions", json={"model": "tiny", "prompt": "hello"})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == code


def test_the_version_is_the_packages(client: Client) -> None:
    assert client.get("/version").json() == {"version": __version__}


def test_models_are_listed_under_all_names(client: Client) -> None:
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["tiny", "org/tiny-alias"]
    assert body["data"][1] == {
        "id": "org/tiny-alias",
        "object": "model",
        "created": 1_600_000_000,
        "root": "tiny",
        "parent": None,
        "max_model_len": MAX_CONTEXT,
        "owned_by": "rocmforge",
        "aliases": ["tiny"],
        "capabilities": ["chat", "completions", "embeddings"],
        "sampling": {
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        },
        "state": "ready",
        "status": {
            "value": "loaded",
            "failed": False,
            "reason": None,
            "stage": "",
            "progress": 1.0,
        },
    }


@pytest.mark.parametrize("name", ["tiny", "org/tiny-alias", "org%2Ftiny-alias"])
def test_one_model_is_shown_and_its_id_may_hold_a_slash(client: Client, name: str) -> None:
    response = client.get(f"/v1/models/{name}")
    assert response.status_code == 200
    assert response.json()["root"] == "tiny"


@pytest.mark.parametrize("name", ["other", "org/other", "tiny/more"])
def test_a_model_that_is_not_served_is_a_404(client: Client, name: str) -> None:
    response = client.get(f"/v1/models/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_models_are_listed_while_loading(client: Client, engine: FakeEngine) -> None:
    engine.state, engine.runner = EngineState.LOADING, None
    assert client.get("/v1/models").json()["data"][0]["max_model_len"] is None
