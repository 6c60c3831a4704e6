"""Framing of server-sent events."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from rocmforge.api.generate.schema import ChatChunk, ChatChunkChoice, Delta
from rocmforge.api.http.sse import TextEvent, event


def chunk(text: str) -> ChatChunk:
    choice = ChatChunkChoice(index=0, delta=Delta(content=text))
    return ChatChunk(id="i", created=1, model="m", system_fingerprint="f", choices=[choice])


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_a_prepared_event_equals_one_that_is_encoded_whole(text: str) -> None:
    assert TextEvent(chunk).fill(text) == event(chunk(text))


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_an_event_is_one_line_whatever_the_text(text: str) -> None:
    framed = event(chunk(text)).decode()
    # What Python calls a line break is wider than what the format does: CR, LF and CRLF.
    assert framed.endswith("\n\n")
    assert "\n" not in framed[:-2]
    assert "\r" not in framed
    data = json.loads(framed.removeprefix("data: "))
    assert data["choices"][0]["delta"]["content"] == text
