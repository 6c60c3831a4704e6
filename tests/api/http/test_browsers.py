"""What web pages may have a browser send: one rule for all routes that change something."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from litestar.routes import HTTPRoute
from litestar.testing import TestClient

from rocmforge.api.http.settings import ApiSettings
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.support.processes.server import LiveServer

JSON = {"content-type": "application/json"}
UI = "https://ui.example"
SAFE = {"GET", "HEAD", "OPTIONS"}


@pytest.fixture
def listed(engine: FakeEngine) -> Iterator[Client]:
    """An application that a page of another origin may use."""
    settings = ApiSettings(cors_origins=(UI,))
    with TestClient(build_app(make_model(engine), settings)) as client:
        yield client


def changing_routes(client: Client) -> list[tuple[str, str]]:
    return [
        (method, route.path_format.replace("{command}", "tiny/unload"))
        for route in client.app.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods - SAFE
    ]


def statuses(client: Client, headers: dict[str, str]) -> dict[str, int]:
    return {
        f"{method} {path}": client.request(method, path, content=b"{}", headers=headers).status_code
        for method, path in changing_routes(client)
    }


def test_it_covers_loading_cancelling_and_deleting(client: Client) -> None:
    routes = changing_routes(client)
    assert len(routes) > 12
    for method, path in (
        ("POST", "/v1/models/tiny/unload"),
        ("POST", "/models/load"),
        ("POST", "/v1/responses/{response_id}/cancel"),
        ("DELETE", "/v1/responses/{response_id}"),
    ):
        assert (method, path) in routes


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_every_route_that_changes_something_takes_json_only(client: Client, kind: str) -> None:
    assert {*statuses(client, {"content-type": kind}).values()} == {415}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://testserver.local:81"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://testserver.local"},
    ],
)
def test_every_route_that_changes_something_refuses_foreign_origins(
    client: Client, headers: dict[str, str]
) -> None:
    assert {*statuses(client, JSON | headers).values()} == {403}


def test_a_page_of_another_origin_needs_no_body_to_be_refused(client: Client) -> None:
    headers = {"origin": "https://evil.example"}
    assert client.post("/v1/models/tiny/unload", headers=headers, timeout=60).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://testserver.local"},
        {"origin": "https://TESTSERVER.LOCAL"},
        {"sec-fetch-site": "same-origin", "origin": "https://name-before-the-proxy.example"},
        {"sec-fetch-site": "none"},
    ],
)
def test_programs_and_own_pages_are_served(client: Client, headers: dict[str, str]) -> None:
    assert not {403, 415} & {*statuses(client, JSON | headers).values()}


def test_a_listed_origin_is_served_and_no_other(listed: Client) -> None:
    foreign = {"sec-fetch-site": "cross-site"}
    assert 403 not in statuses(listed, JSON | foreign | {"origin": UI}).values()
    assert {*statuses(listed, JSON | foreign | {"origin": "https://a.example"}).values()} == {403}


def test_any_origin_is_served_if_all_are_listed(engine: FakeEngine) -> None:
    settings = ApiSettings(cors_origins=("*",))
    with TestClient(build_app(make_model(engine), settings)) as client:
        assert 403 not in statuses(client, JSON | {"origin": "https://a.example"}).values()


@pytest.mark.parametrize("command", ["load", "unload"])
def test_a_command_needs_no_body(client: Client, command: str) -> None:
    assert client.post(f"/v1/models/tiny/{command}").status_code == 200


def test_a_page_cannot_unload_the_model_of_a_live_server(live: LiveServer) -> None:
    headers = {"origin": "https://evil.example", "content-type": "text/plain"}
    answer = httpx.post(
        f"{live.url}/v1/models/tiny/unload", content="x", headers=headers, timeout=60
    )
    assert answer.status_code == 415
    del headers["content-type"]
    answer = httpx.post(f"{live.url}/v1/models/tiny/unload", headers=headers, timeout=60)
    assert answer.status_code == 403
    (model,) = live.get("/v1/models").json()["data"]
    assert model["state"] == "ready"
