"""The served OpenAPI document is true: complete by itself, and by schemathesis."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient

from rocmforge import __version__
from rocmforge.api.app import HANDLERS
from rocmforge.api.http.keys import Keyring, given_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.openapi import docs, index, openapi
from rocmforge.api.page import page, page_file
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.api.live import assert_settles, live_server
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.slow

SCHEMATHESIS = "schemathesis==4.32.5"
# They end what others wait for, so they are tried by themselves.
UNLOADING = ("command_model_post", "unload_model_post")


@pytest.fixture
def document(client: Client) -> Any:
    return client.get("/openapi.json").json()


def test_every_handler_is_in_it(document: Any) -> None:
    described = {
        (path, method.upper()) for path, methods in document["paths"].items() for method in methods
    }
    served = {
        (re.sub(r":\w+\}", "}", path), method)
        for handler in HANDLERS
        if handler not in (openapi, docs, index, page, page_file)
        for path in handler.paths
        for method in handler.http_methods
    }
    assert described == served


def test_operations_have_names_of_their_own(document: Any) -> None:
    names = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert len(set(names)) == len(names)


def test_every_reference_leads_somewhere(client: Client, document: Any) -> None:
    references = set(
        re.findall(r'"#/components/schemas/([^"]+)"', client.get("/openapi.json").text)
    )
    assert references == references & set(document["components"]["schemas"])
    assert "ChatRequest" in references


def test_it_knows_ranges_and_the_models_that_are_served(document: Any) -> None:
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["model"]["enum"] == ["tiny", "org/tiny-alias"]
    (number, _) = fields["temperature"]["anyOf"]
    assert (number["minimum"], number["maximum"]) == (0, 2)


def test_the_page_needs_nothing_from_elsewhere(client: Client, document: Any) -> None:
    response = client.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|<script|@import|url\(", response.text)
    for path in document["paths"]:
        assert f"{path}</code>" in response.text
    targets = set(re.findall(r'href="#([^"]+)"', response.text))
    assert targets <= set(re.findall(r'id="([^"]+)"', response.text))
    assert {"ChatRequest", "ResponseCreated"} <= targets


def test_the_apis_address_leads_to_the_description(client: Client) -> None:
    response = client.get("/v1")
    assert [each.status_code for each in response.history] == [307]
    assert response.url.path == "/docs"
    assert response.status_code == 200


def test_the_page_opens_without_a_key_and_tells_nothing_about_the_server(
    engine: FakeEngine,
) -> None:
    app = build_app(make_model(engine), ApiSettings(), Keyring(given_keys(["some-secret-key"])))
    with TestClient(app) as client:
        page = client.get("/v1")
        assert page.url.path == "/docs"
        assert page.status_code == 200
        assert "ChatRequest" in page.text
        assert "tiny" not in page.text
        assert __version__ not in page.text
        assert client.get("/openapi.json").status_code == 401


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose answers end after at most 256 tokens: few requests made here limit theirs."""
    log = tmp_path_factory.mktemp("brief") / "log"
    with live_server(log, "--max-context", "256") as server:
        yield server


def without_examples(server: LiveServer, folder: Path) -> Path:
    """Saves the document without the fields' examples: all together they make long requests."""

    def bare(node: Any) -> Any:
        if isinstance(node, list):
            return [bare(each) for each in node]
        if not isinstance(node, dict):
            return node
        return {k: bare(v) for k, v in node.items() if k != "examples" or not isinstance(v, list)}

    file = folder / "openapi.json"
    document = httpx2.get(f"{server.url}/openapi.json").json()
    file.write_text(json.dumps(bare(document)))
    return file


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("which", "workers"), [("--exclude-operation-id", "2"), ("--include-operation-id", "1")]
)
def test_schemathesis_finds_nothing_wrong(
    brief: LiveServer, tmp_path: Path, which: str, workers: str
) -> None:
    uvx = shutil.which("uvx")
    if uvx is None:
        pytest.skip("uv is not installed")
    # Rules between fields are not in schemas, so what fits one may be refused. The web framework's
    # own answer to OPTIONS names the methods of one handler of a path only.
    exceptions = "positive_data_acceptance,allow_header_conformance"
    done = subprocess.run(
        [
            *(uvx, "--quiet", SCHEMATHESIS, "run", without_examples(brief, tmp_path)),
            *("--url", brief.url),
            *("--checks", "all", "--exclude-checks", exceptions),
            *("--phases", "coverage,fuzzing", "--max-examples", "5"),
            *("--generation-deterministic", "--workers", workers, "--no-color"),
            *(part for name in UNLOADING for part in (which, name)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert_settles(brief)
