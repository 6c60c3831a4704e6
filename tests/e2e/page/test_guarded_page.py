"""The page of a server with keys, and of one that stops and starts under it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.page.conftest import KEY, OpenPage
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.slow


def enter(page: Page, key: str, *, keep: bool = False) -> None:
    dialogue = page.get_by_role("dialog", name="This server asks for a key")
    dialogue.get_by_label("Key", exact=True).fill(key)
    dialogue.get_by_label("Keep it in this browser").set_checked(keep)
    dialogue.get_by_role("button", name="Enter").click()


def test_it_asks_for_a_key_until_one_is_right(guarded: LiveServer, open_page: OpenPage) -> None:
    page = open_page(guarded)
    enter(page, "a-wrong-key")
    expect(page.get_by_role("alert")).to_have_text("The server does not know this key.")
    enter(page, KEY)
    expect(page.get_by_role("heading", name="tiny")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_label("Your message").fill("hello")
    page.keyboard.press("Enter")
    expect(page.locator("article.assistant .block")).not_to_have_count(0)


@pytest.mark.parametrize("keep", [False, True])
def test_the_key_is_kept_only_if_people_say_so(
    guarded: LiveServer, open_page: OpenPage, keep: bool
) -> None:
    page = open_page(guarded)
    enter(page, KEY, keep=keep)
    expect(page.get_by_role("heading", name="tiny")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="tiny" if keep else "asks for a key")).to_be_visible()


def test_what_the_server_does_is_shown(guarded: LiveServer, open_page: OpenPage) -> None:
    page = open_page(guarded)
    enter(page, KEY)
    page.get_by_role("button", name="What the server does").click()

    def figure(label: str) -> Locator:
        return page.locator(".figure", has_text=label).locator(".value")

    expect(figure("Blocks in use")).to_have_text("0 %")
    expect(figure("First token")).to_have_text("–")
    expect(page.locator(".figure canvas")).to_have_count(6)
    page.get_by_label("Your message").fill("hello")
    page.keyboard.press("Enter")
    expect(figure("First token")).to_have_text(re.compile(r"[\d.]+ s"))


def test_an_answer_is_tried_again_after_the_server_has_restarted(
    guarded: LiveServer, open_page: OpenPage
) -> None:
    page = open_page(guarded)
    enter(page, KEY)
    expect(page.get_by_role("heading", name="tiny")).to_be_visible()
    guarded.kill()
    page.get_by_label("Your message").fill("hello")
    page.keyboard.press("Enter")
    answer = page.locator("article.assistant")
    expect(answer).to_contain_text("The server does not answer")
    guarded.__enter__()
    answer.get_by_role("button", name="Try again").click()
    expect(answer.locator(".block")).not_to_have_count(0)
    expect(page.get_by_text("The server does not answer")).to_have_count(0)
