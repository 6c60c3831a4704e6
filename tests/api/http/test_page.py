"""The page at /: who gets it, from where, under which policy, and what it may not bring along."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from litestar.testing import TestClient

from page.build import PINS, VENDOR
from rocmforge import __version__
from rocmforge.api.http.keys import Keyring, given_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.page import FOLDER, read_bundle
from rocmforge.fleet.fleet import Fleet
from rocmforge.settings import Settings
from rocmforge.wiring import build_web_app
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.support.processes.page import ensure_libraries


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    ensure_libraries()


@pytest.fixture
def guarded(engine: FakeEngine) -> Iterator[Client]:
    keys = Keyring(given_keys(["some-secret-key"]))
    with TestClient(build_app(make_model(engine), ApiSettings(), keys)) as client:
        yield client


def addresses(html: str) -> list[str]:
    """What the page loads."""
    return re.findall(r'(?:src|href)="([^"]+)"', html.partition("<body>")[0])


def test_it_loads_without_a_key_and_tells_nothing_about_the_server(guarded: Client) -> None:
    answer = guarded.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    texts = [answer.text, *(guarded.get(f"/{path}").text for path in addresses(answer.text))]
    assert len(texts) > 6
    assert [text for text in texts if "tiny" in re.findall(r"\w+", text)] == []
    assert [text for text in texts if f"ROCmForge {__version__}" in text] == []
    assert guarded.get("/v1/models").status_code == 401


def test_browsers_let_it_talk_to_this_server_only_and_run_no_script_of_a_document(
    client: Client,
) -> None:
    policy = dict(
        part.strip().split(" ", 1)
        for part in client.get("/").headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    for kind in ("connect", "font", "script", "style"):
        assert policy[f"{kind}-src"] == "'self'"
    assert policy["img-src"] == "'self' data:"
    for kind in ("base-uri", "form-action", "frame-ancestors"):
        assert policy[kind] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"


def test_its_files_may_be_kept_for_ever_as_their_addresses_change_with_them(
    client: Client, tmp_path: Path
) -> None:
    paths = addresses(client.get("/").text)
    for path in paths:
        answer = client.get(f"/{path}")
        assert answer.status_code == 200, path
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    folder = shutil.copytree(FOLDER, tmp_path / "page")
    before = read_bundle(folder).digest
    (folder / "theme.js").write_text("changed")
    assert f"page/{before}/theme.js" in paths
    assert read_bundle(folder).digest != before


def test_everything_that_a_module_imports_is_served() -> None:
    files = read_bundle().files
    imported = {
        Path(name).parent / target
        for name, content in files.items()
        if name.endswith(".js") and not name.startswith("vendor/")
        for target in re.findall(
            r'^(?:import|export)[^"]*"(\./[^"]+|\.\./[^"]+)"', content.decode(), re.M
        )
    }
    served = {(FOLDER / name).resolve() for name in files}
    assert len(imported) > 15
    assert [str(path) for path in imported if (FOLDER / path).resolve() not in served] == []


@pytest.mark.parametrize(
    "path",
    [
        *("page/{digest}/index.html", "page/{digest}/nothing.js", "page/0000/app.js"),
        *(
            "page/{digest}/../api/page.py",
            "page/{digest}/%2e%2e/api/page.py",
            "page/{digest}/vendor/../../settings.py",
        ),
    ],
)
def test_no_other_file_is_served(client: Client, path: str) -> None:
    assert client.get("/" + path.format(digest=read_bundle().digest)).status_code == 404


def test_it_can_be_taken_away(engine: FakeEngine) -> None:
    with TestClient(build_app(make_model(engine), ApiSettings(has_page=False))) as client:
        answer = client.get("/")
        assert answer.url.path == "/docs"
        assert answer.status_code == 200
        assert client.get(f"/page/{read_bundle().digest}/app.js").status_code == 404


@pytest.mark.parametrize(("no_page", "path"), [(False, "/"), (True, "/docs")])
def test_the_setting_takes_it_away(engine: FakeEngine, no_page: bool, path: str) -> None:
    app = build_web_app(
        Fleet([make_model(engine)]), Settings(no_page=no_page, insecure=True), Keyring()
    )
    with TestClient(app) as client:
        assert client.get("/").url.path == path


def test_without_its_libraries_it_says_what_to_run(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "page")
    shutil.rmtree(folder / "vendor")
    monkeypatch.setattr("rocmforge.api.app.read_bundle", lambda: read_bundle(folder))
    with TestClient(build_app(make_model(engine), ApiSettings())) as client:
        answer = client.get("/")
        assert answer.status_code == 503
        assert "just page" in answer.text
        assert client.get("/v1/models").status_code == 200


def test_libraries_are_pinned_with_checksums_and_their_licences_come_along() -> None:
    asked = json.loads((PINS / "package.json").read_text())["dependencies"]
    lock = json.loads((PINS / "package-lock.json").read_text())["packages"]
    del lock[""]
    assert [
        name for name, facts in lock.items() if not facts["integrity"].startswith("sha512-")
    ] == []
    assert [name for name, facts in lock.items() if "resolved" in facts] == []
    licences = (VENDOR / "licences.txt").read_text()
    for name, version in asked.items():
        assert lock[f"node_modules/{name}"]["version"] == version
        assert f"{name} {version}" in licences
