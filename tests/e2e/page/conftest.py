"""A browser, and the servers whose page it shows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.api.live import live_server
from tests.support.models.speaking import write_speaking
from tests.support.processes.page import ensure_libraries
from tests.support.processes.server import LiveServer

KEY = "a-key-of-the-tests"
PATIENCE_MS = 60_000
CONFIG = """
backend = "reference"
max_context = 1024
max_sequences = 4

[models.smollm2]
path = "{smollm2}"

[models.other]
path = "{other}"
load = "request"
"""

OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: it is a package of Debian")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # The sandbox needs what containers do not have; the page that it shows is ours.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a server's page as somebody new, and finds at the end that nothing in it has failed."""
    problems: list[str] = []
    contexts = []

    def note(message: ConsoleMessage) -> None:
        # The browser itself notes refused keys and servers that are away; the page tells people.
        if message.type == "error" and "Failed to load resource" not in message.text:
            problems.append(message.text)

    def open_(
        server: LiveServer, *, width: int = 1200, height: int = 800, theme: str = "light"
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if theme == "dark" else "light",
            accept_downloads=True,
            reduced_motion="reduce",
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server.url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """SmolLM2 on the reference backend, and a tiny model that is loaded when it is asked for."""
    ensure_libraries()
    folder = tmp_path_factory.mktemp("page")
    other = write_speaking(folder, "llama")
    config = folder / "rocmforge.toml"
    config.write_text(CONFIG.format(smollm2=smollm2_path, other=other))
    command = ("-m", "rocmforge", "serve", "--config", str(config), "--port", "{port}")
    with LiveServer(command, folder / "log") as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that takes a key and makes tokens up."""
    ensure_libraries()
    log = tmp_path_factory.mktemp("guarded") / "log"
    with live_server(log, "--api-key", KEY) as server:
        yield server


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that makes tokens up."""
    ensure_libraries()
    with live_server(tmp_path_factory.mktemp("unguarded") / "log") as server:
        yield server
