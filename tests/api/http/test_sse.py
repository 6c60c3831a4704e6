"""Framing of server-sent events."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from rocmforge.api.generate.schema import ChatChunk, ChatChunkChoice, Delta
from rocmforge.api.http.sse import TextEvent, comment, event


def chunk(text: str) -> ChatChunk:
    choice = ChatChunkChoice(index=0, delta=Delta(content=text))
    return ChatChunk(id="i", created=1, model="m", system_fingerprint="f", choices=[choice])


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_a_prepared_event_equals_one_that_is_encoded_whole(text: str) -> None:
    assert TextEvent(chunk).fill(text) == event(chunk(text))


@given(st.text(alphabet=st.characters(codec="utf-8")))
@example("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
def test_an_event_is_one_line_whatever_the_text(text: str) -> None:
    framed = event(chunk(text)).decode()
    # To the format, lines end at CR, LF and CRLF. Clients that use Python's `splitlines` or
    # `iter_lines` of httpx end them at eight more characters.
    line, empty = framed.splitlines()
    assert not empty
    data = json.loads(line.removeprefix("data: "))
    assert data["choices"][0]["delta"]["content"] == text


@given(st.text(alphabet=st.characters(codec="utf-8")))
@example("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
def test_a_comment_is_one_line_whatever_the_text(text: str) -> None:
    line, empty = comment(text).decode().splitlines()
    assert line.startswith(": ")
    assert not empty
