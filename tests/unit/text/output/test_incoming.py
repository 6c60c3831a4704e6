"""Text whose front is understood, or skipped, while more of it comes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.text.output.incoming import Incoming

MARKS = ("<call>", "\n</call>", "</call>", "c")


def incoming(text: str) -> Incoming:
    found = Incoming()
    found.add(text)
    return found


@pytest.mark.parametrize(
    ("text", "marks", "taken", "left"),
    [
        ("before<call>behind", ("<call>",), "before", "<call>behind"),
        ("before<cal", ("<call>",), "before", "<cal"),
        ("a < b", ("<call>",), "a < b", ""),
        ("a\n</call>", ("</call>", "\n</call>"), "a", "\n</call>"),
        ("a\n</", ("</call>", "\n</call>"), "a", "\n</"),
        ("a\nb", (), "a\nb", ""),
    ],
)
def test_text_ends_where_a_mark_begins_or_might(
    text: str, marks: tuple[str, ...], taken: str, left: str
) -> None:
    found = incoming(text)
    assert (found.take_until(*marks), found.text) == (taken, left)


@given(
    st.text(alphabet="a\n<>/cl", max_size=30),
    st.lists(st.integers(0, 30), max_size=6),
    st.sets(st.sampled_from(MARKS)),
)
def test_the_same_text_is_taken_however_it_came(
    text: str, cuts: list[int], marks: set[str]
) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    found = Incoming()
    taken = ""
    for begin, end in pairwise(places):
        found.add(text[begin:end])
        taken += found.take_until(*marks)
    places_of_marks = [text.find(mark) for mark in marks if mark in text]
    if places_of_marks:
        assert taken == text[: min(places_of_marks)]
    else:
        assert taken + found.text == text
        assert any(mark.startswith(found.text) for mark in marks) or not found.text


def test_a_mark_is_taken_only_from_the_front() -> None:
    found = incoming("</call>a</call>")
    assert [found.take_mark("x", "</call>"), found.take_mark("</call>")] == ["</call>", ""]
    assert found.text == "a</call>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", True), ("<", True), ("<call", True), ("<call>", False), ("<cat", False), ("/", True)],
)
def test_the_beginning_of_a_mark_may_become_one(text: str, expected: bool) -> None:
    assert incoming(text).may_become("//", "<call>") == expected


def test_what_was_skipped_comes_back_as_it_was() -> None:
    found = incoming(" \n<call>; x")
    found.skip_space()
    assert found.skip_mark("<call>") == "<call>"
    found.skip_space("; ")
    assert (found.text, found.take_skipped(), found.take_skipped()) == ("x", " \n<call>; ", "")


def test_what_was_skipped_and_is_markup_for_certain_does_not() -> None:
    found = incoming("<call>x")
    found.skip_mark("<call>")
    found.forget_skipped()
    assert (found.take_skipped(), found.take()) == ("", "x")
