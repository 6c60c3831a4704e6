"""Keys and cross-origin rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from litestar.testing import TestClient

from rocmforge.api.app import build_app
from rocmforge.api.settings import ApiSettings
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, make_service

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def guarded(engine: FakeEngine) -> Iterator[Client]:
    settings = ApiSettings(
        api_keys=("first-key", "schlüssel"), cors_origins=("https://ui.example",)
    )
    with TestClient(build_app(make_service(engine), settings)) as client:
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


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny"])
def test_models_need_a_key(guarded: Client, path: str) -> None:
    assert guarded.get(path).status_code == 401


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/completions"])
def test_posts_need_a_key(guarded: Client, path: str) -> None:
    assert guarded.post(path, json={}).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/metrics"])
def test_supervisors_need_no_key(guarded: Client, path: str) -> None:
    assert guarded.get(path).status_code == 200


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
