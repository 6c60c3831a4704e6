"""Keys and cross-origin rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from litestar.routes import HTTPRoute
from litestar.testing import TestClient

from rocmforge.api.http.keys import Keyring, given_keys
from rocmforge.api.http.settings import ApiSettings
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def guarded(engine: FakeEngine) -> Iterator[Client]:
    settings = ApiSettings(cors_origins=("https://ui.example",))
    keys = Keyring(given_keys(["first-key", "schlüssel"]))
    with TestClient(build_app(make_model(engine), settings, keys)) as client:
        yield client


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer first-key"},
        {"authorization": "Bearer   first-key "},
        {"x-api-key": "first-key"},
        {"authorization": "Basic Zm9v", "x-api-key": "first-key"},
    ],
)
def test_a_right_key_is_let_in(guarded: Client, headers: dict[str, str]) -> None:
    assert guarded.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer first-ke"},
        {"authorization": "Bearer first-key2"},
        {"authorization": "first-key"},
        {"authorization": "Basic first-key"},
        {"x-api-key": ""},
        {"x-api-key": "wrong"},
    ],
)
def test_no_key_or_a_wrong_one_is_a_401(
    guarded: Client, engine: FakeEngine, headers: dict[str, str]
) -> None:
    response = guarded.post("/v1/chat/completions", json=BODY, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert engine.submitted == []


def test_a_key_need_not_be_ascii(guarded: Client) -> None:
    headers = {"x-api-key": "schlüssel".encode()}
    assert guarded.get("/v1/models", headers=headers).status_code == 200  # type: ignore[arg-type]


def test_the_key_is_checked_before_the_body(guarded: Client) -> None:
    assert guarded.post("/v1/chat/completions", content=b"{").status_code == 401


def test_every_route_but_the_health_checks_and_the_pages_needs_a_key(guarded: Client) -> None:
    routes = [
        (method, route.path_format)
        for route in guarded.app.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods - {"OPTIONS"}
    ]
    answers = {
        f"{method} {path}": guarded.request(method, path).status_code for method, path in routes
    }
    open_routes = {route for route, status in answers.items() if status != 401}
    assert open_routes == {
        *("GET /health", "HEAD /health", "GET /ready", "HEAD /ready"),
        *("GET /docs", "GET /", "HEAD /", "GET /v1", "HEAD /v1"),
        "GET /page/{digest}/{name}",
    }
    assert "POST /v1/chat/completions" in answers


def test_a_listed_origin_may_call_and_read_errors(guarded: Client) -> None:
    headers = {"origin": "https://ui.example"}
    response = guarded.post("/v1/chat/completions", json=BODY, headers=headers)
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "https://ui.example"


def test_a_preflight_needs_no_key(guarded: Client) -> None:
    response = guarded.options(
        "/v1/chat/completions",
        headers={
            "origin": "https://ui.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        },
    )
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == "https://ui.example"
    assert "authorization" in response.headers["access-control-allow-headers"].lower()


def test_another_origin_gets_no_permission(guarded: Client) -> None:
    response = guarded.get("/health", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in response.headers


def test_without_origins_nothing_is_said_about_them(client: Client) -> None:
    response = client.get("/health", headers={"origin": "https://ui.example"})
    assert "access-control-allow-origin" not in response.headers
