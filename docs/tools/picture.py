"""Takes the README's picture: the page at /, with answers of the demo model.

    python -m docs.tools.picture

Needs Debian's Chromium, and a minute or so: the reference backend writes the answers.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.sync_api import Page, expect, sync_playwright

from tests.support.processes.page import ensure_libraries
from tests.support.processes.server import LiveServer

FILE: Final = Path(__file__).parents[1] / "images/page.png"
QUESTIONS: Final = (
    "What is the capital of France?",
    "Write a Python function that returns the square of a number.",
)
_COMMAND: Final = ("-m", "rocmforge", "serve", "smollm2", "--max-context", "2048")
_PATIENCE_MS: Final = 300_000


def main() -> None:
    """Starts the server, asks its model, and saves what people see."""
    ensure_libraries()
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        log = Path(folder) / "log"
        with LiveServer(
            (*_COMMAND, "--sampling", "temperature=0", "--port", "{port}"), log
        ) as server:
            chromium = shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1100, "height": 640}, color_scheme="light")
            page.set_default_timeout(_PATIENCE_MS)
            expect.set_options(timeout=_PATIENCE_MS)
            page.goto(server.url)
            page.get_by_role("button", name="server", exact=False).first.click()
            for number, question in enumerate(QUESTIONS, 1):
                _ask(page, question, number)
            FILE.parent.mkdir(exist_ok=True)
            page.screenshot(path=FILE)
            browser.close()


def _ask(page: Page, question: str, number: int) -> None:
    page.get_by_label("Your message").fill(question)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_label("Your message").press("Enter")
    answers = page.locator("article.assistant")
    expect(answers).to_have_count(number)
    expect(answers.last.get_by_role("button", name="Answer again")).to_be_visible()


if __name__ == "__main__":
    main()
