"""Reasoning goes into a field of its own, for OpenAI's library and streamed as plain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
from litestar.testing import TestClient

from rocmforge.api.app import build_app
from rocmforge.api.settings import ApiSettings
from rocmforge.text.template import ChatTemplates
from tests.api import tiny
from tests.api.fake_engine import FakeEngine, make_service, say, tiny_text

ALLOWS = tiny.CHATML + "{# <think> #}"
BEGINS = tiny.CHATML.replace("assistant\n", "assistant\n<think>\n")
MESSAGES: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [{"type": "function", "function": {"name": "now"}}]


@contextmanager
def sdk(template: str, answer: str) -> Iterator[openai.OpenAI]:
    """A client of a server whose model says this, a token at a time."""
    tokenizer, _ = tiny_text()
    ids = tokenizer.encode(answer, parse_special=False)
    engine = FakeEngine(script=say(*[[token] for token in ids], [tiny.IM_END]))
    templates = ChatTemplates.from_metadata(tiny.metadata(), tokenizer, override=template)
    app = build_app(make_service(engine, templates=templates), ApiSettings())
    with TestClient(app) as http:
        base_url = "http://testserver.local/v1"
        transport: Any = http  # the library's own type of client differs by version
        yield openai.OpenAI(http_client=transport, base_url=base_url, api_key="none", max_retries=0)


def answers(template: str, answer: str, **fields: Any) -> tuple[str | None, str | None]:
    """Reasoning and content of the plain answer; the streamed one must be equal."""
    with sdk(template, answer) as client:
        plain = client.chat.completions.create(model="tiny", messages=MESSAGES, **fields)
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, **fields
        )
        deltas = [chunk.choices[0].delta for chunk in stream]
    message = plain.choices[0].message
    reasoning: str | None = getattr(message, "reasoning_content", None)
    streamed = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert streamed == (reasoning or "")
    assert "".join(delta.content or "" for delta in deltas) == (message.content or "")
    return reasoning, message.content


def test_a_section_that_the_model_opens() -> None:
    assert answers(ALLOWS, "<think>\nhello?\n</think>\n\nworld") == ("hello?\n", "world")


def test_a_section_that_the_prompt_has_opened() -> None:
    assert answers(BEGINS, "hello?</think>world") == ("hello?", "world")


def test_a_template_without_sections_leaves_the_text_alone() -> None:
    text = "<think>hello?</think>world"
    assert answers(tiny.CHATML, text) == (None, text)


def test_a_form_for_the_whole_answer_leaves_no_room_for_reasoning() -> None:
    assert answers(BEGINS, "[1]", extra_body={"guided_regex": r"\[1\]"}) == (None, "[1]")


def test_calls_in_reasoning_are_thoughts() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    with sdk(ALLOWS, f"<think>{call}</think>{call}") as client:
        completion = client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS)
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert len(choice.message.tool_calls or []) == 1
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == call
