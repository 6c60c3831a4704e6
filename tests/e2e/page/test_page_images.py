"""Images on the page: pasted, dropped and chosen, kept, sent again with each turn."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, Route, expect

from tests.e2e.page.answers import answer_with
from tests.e2e.page.conftest import OpenPage
from tests.support.files.pictures import data_address, encoded, picture
from tests.support.processes.page import axe
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.slow

FILE = encoded(picture(40, 30))
ADDRESS = data_address(FILE)


def with_images(page: Page) -> None:
    """Has the server say that its model takes images."""

    def fulfil(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        for model in body["data"]:
            model["capabilities"] = [*model["capabilities"], "images"]
        route.fulfill(response=answer, json=body)

    page.route("**/v1/models", fulfil)
    page.reload()
    expect(page.get_by_role("button", name="Add images")).to_be_visible()


def bring(
    page: Page, kind: str, *files: bytes, name: str = "a.png", mime: str = "image/png"
) -> None:
    """Pastes files into the message, or drops them on it."""
    page.evaluate(
        """([kind, files, name, type]) => {
          const transfer = new DataTransfer();
          for (const text of files) {
            const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
            transfer.items.add(new File([bytes], name, { type }));
          }
          const options = { bubbles: true, cancelable: true };
          const event = kind === "paste"
            ? new ClipboardEvent("paste", { ...options, clipboardData: transfer })
            : new DragEvent("drop", { ...options, dataTransfer: transfer });
          document.querySelector("#message").dispatchEvent(event);
        }""",
        [kind, [b64encode(file).decode() for file in files], name, mime],
    )


def added(page: Page) -> Locator:
    return page.get_by_role("list", name="Images to send").get_by_role("img")


def box(page: Page) -> Locator:
    return page.get_by_label("Your message")


@pytest.fixture
def open_image_page(unguarded: LiveServer, open_page: OpenPage) -> Callable[[], Page]:
    """Opens the page of a server whose model takes images, as far as the page knows."""

    def open_() -> Page:
        page = open_page(unguarded)
        with_images(page)
        return page

    return open_


def test_a_pasted_image_is_sent_shown_and_kept(open_image_page: Callable[[], Page]) -> None:
    page = open_image_page()
    bodies = answer_with(page, "A gradient.")
    bring(page, "paste", FILE)
    expect(added(page)).to_have_count(1)
    box(page).fill("What is this?")
    box(page).press("Enter")
    expect(page.locator("article.assistant")).to_contain_text("A gradient.")
    expect(added(page)).to_have_count(0)
    wanted = [
        {"type": "image_url", "image_url": {"url": ADDRESS}},
        {"type": "text", "text": "What is this?"},
    ]
    assert bodies[0]["messages"] == [{"role": "user", "content": wanted}]
    page.reload()
    image = page.locator("article.user").get_by_role("img")
    assert image.get_attribute("src") == ADDRESS
    assert image.evaluate("image => image.naturalWidth") == 40  # the browser may show it
    box(page).fill("And now?")
    box(page).press("Enter")
    expect(page.locator("article.assistant")).to_have_count(2)
    assert bodies[1]["messages"][0]["content"] == wanted


def test_an_image_alone_is_a_message_and_can_be_taken_away(
    open_image_page: Callable[[], Page],
) -> None:
    page = open_image_page()
    bodies = answer_with(page, "Two.")
    bring(page, "paste", FILE, encoded(picture(10, 10)))
    expect(added(page)).to_have_count(2)
    page.get_by_role("button", name="Remove image 1").press("Enter")
    expect(added(page)).to_have_count(1)
    expect(box(page)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("article.assistant")).to_contain_text("Two.")
    (part,) = bodies[0]["messages"][0]["content"]
    assert part["image_url"]["url"] == data_address(encoded(picture(10, 10)))


def test_a_large_image_is_made_smaller(open_image_page: Callable[[], Page]) -> None:
    page = open_image_page()
    bodies = answer_with(page, "Wide.")
    noise = Image.effect_noise((2100, 700), 80)
    bring(page, "drop", encoded(noise))
    expect(added(page)).to_have_count(1)
    box(page).press("Enter")
    expect(page.locator("article.assistant")).to_contain_text("Wide.")
    (part,) = bodies[0]["messages"][0]["content"]
    url = part["image_url"]["url"]
    assert url.startswith("data:image/jpeg;base64,")
    assert len(url) < 2 * 1024 * 1024
    assert _size_of(page, url) == [2048, 683]


def _size_of(page: Page, url: str) -> list[int]:
    size: list[int] = page.evaluate(
        "async url => { const i = new Image(); i.src = url; await i.decode(); "
        "return [i.naturalWidth, i.naturalHeight]; }",
        url,
    )
    return size


def test_what_is_no_image_is_told(open_image_page: Callable[[], Page]) -> None:
    page = open_image_page()
    for content, mime, reason in (
        (b"<svg/>", "image/svg+xml", "is no JPEG, PNG, WebP or GIF image"),
        (FILE[:40], "image/png", "is damaged"),
    ):
        bring(page, "paste", content, mime=mime)
        expect(page.locator(".composer").get_by_role("alert")).to_contain_text(reason)
        expect(added(page)).to_have_count(0)
    bring(page, "paste", *[FILE] * 9)
    expect(added(page)).to_have_count(8)
    expect(page.locator(".composer").get_by_role("alert")).to_contain_text("may have 8 images")


def test_a_model_of_text_takes_no_image(unguarded: LiveServer, open_page: OpenPage) -> None:
    page = open_page(unguarded)
    expect(page.get_by_role("combobox", name="Model")).to_be_visible()
    expect(page.get_by_role("button", name="Add images")).to_have_count(0)
    bring(page, "paste", FILE)
    expect(page.locator(".composer").get_by_role("alert")).to_contain_text("takes no images")
    expect(added(page)).to_have_count(0)


def test_axe_finds_nothing_wrong_with_images(open_image_page: Callable[[], Page]) -> None:
    page = open_image_page()
    answer_with(page, "A gradient.")
    bring(page, "paste", FILE)
    box(page).press("Enter")
    expect(page.locator("article.assistant")).to_contain_text("A gradient.")
    bring(page, "paste", FILE)
    expect(added(page)).to_have_count(1)
    page.evaluate(axe())
    found = page.evaluate("() => axe.run({ include: [['.composer'], ['.messages']] })")
    assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []


def test_images_are_dropped_and_chosen(open_image_page: Callable[[], Page], tmp_path: Path) -> None:
    page = open_image_page()
    bring(page, "drop", FILE)
    expect(added(page)).to_have_count(1)
    (tmp_path / "a.png").write_bytes(FILE)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add images").press("Enter")
    chooser.value.set_files(tmp_path / "a.png")
    expect(added(page)).to_have_count(2)


def test_images_of_an_imported_file_are_images_and_nothing_else(
    open_image_page: Callable[[], Page], tmp_path: Path
) -> None:
    images = [ADDRESS, "https://evil.example/x.png", "data:text/html;base64,AAAA", 5]
    node = {"id": "1", "parent": "", "role": "user", "text": "look", "images": images}
    conversation = {"title": "imported", "nodes": {"1": node}, "chosen": {}}
    file = {"format": "rocmforge-conversations", "version": 1, "conversations": [conversation]}
    (tmp_path / "a.json").write_text(json.dumps(file))
    page = open_image_page()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    chooser.value.set_files(tmp_path / "a.json")
    page.get_by_role("button", name="imported", exact=True).click()
    shown = page.locator("article.user").get_by_role("img")
    expect(shown).to_have_count(1)
    assert shown.get_attribute("src") == ADDRESS
