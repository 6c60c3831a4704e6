"""TrackedText does what str does, and its flags stay with their characters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.text.template.tracked import (
    TrackedMarkup,
    TrackedText,
    escaped,
    formatted,
    joined,
    trust_of,
)

# In these tests capitals come from the template, everything else from a client. So after any
# operation that keeps characters as they are, flags can be told from the characters.
LETTERS = "ABab \n-"
texts = st.text(LETTERS, max_size=12)


def tracked(text: str) -> TrackedText:
    return TrackedText(text, bytes(character in "AB" for character in text))


def check(result: object, expected: object) -> None:
    assert result == expected
    parts = result if isinstance(result, list | tuple) else [result]
    for part in parts:
        assert isinstance(part, TrackedText)
        assert part._trust == bytes(character in "AB" for character in part)


UNARY: list[Callable[[str], object]] = [
    lambda s: s.strip(),
    lambda s: s.lstrip(),
    lambda s: s.rstrip(),
    lambda s: s.strip("aA"),
    lambda s: s.split(),
    lambda s: s.split(None, 1),
    lambda s: s.rsplit(None, 1),
    lambda s: s.rsplit(),
    lambda s: s.splitlines(),
    lambda s: s.splitlines(True),
    lambda s: s[2:7],
    lambda s: s[::-1],
    lambda s: s[-3:],
    lambda s: list(s),
    lambda s: s * 3,
    lambda s: 2 * s,
    lambda s: s[:1] and s[0],
]
BINARY: list[Callable[[str, str], object]] = [
    lambda s, t: s + t,
    lambda s, t: s.removeprefix(t),
    lambda s, t: s.removesuffix(t),
    lambda s, t: s.join([t, t, t]),
    lambda s, t: s.split(t or "-"),
    lambda s, t: s.split(t or "-", 1),
    lambda s, t: s.rsplit(t or "-", 1),
    lambda s, t: s.partition(t or "-"),
    lambda s, t: s.rpartition(t or "-"),
    lambda s, t: s.replace(t or "-", "xyz"),
    lambda s, t: s.replace("a", t, 2),
]


@pytest.mark.parametrize("operation", UNARY)
@given(text=texts)
def test_flags_stay_with_their_characters(operation: Callable[[str], object], text: str) -> None:
    check(operation(tracked(text)), operation(text))


@pytest.mark.parametrize("operation", BINARY)
@given(text=texts, other=st.text(LETTERS, max_size=3))
def test_flags_stay_with_their_characters_of_two(
    operation: Callable[[str, str], object], text: str, other: str
) -> None:
    check(operation(tracked(text), tracked(other)), operation(text, other))


@given(texts, texts)
def test_plain_strings_are_not_trusted_on_either_side(text: str, other: str) -> None:
    mine, plain = tracked(text), bytes(len(other))
    assert trust_of(mine + other) == trust_of(mine) + plain
    assert trust_of(other + mine) == plain + trust_of(mine)
    assert trust_of(joined([other, mine])) == plain + trust_of(mine)


@pytest.mark.parametrize(
    "method", ["upper", "lower", "title", "capitalize", "swapcase", "casefold"]
)
@given(text=st.text(max_size=8))
def test_changing_case_keeps_flags_or_drops_trust(method: str, text: str) -> None:
    trust = bytes(index % 2 for index in range(len(text)))
    result = getattr(TrackedText(text, trust), method)()
    assert result == getattr(text, method)()
    assert trust_of(result) == (trust if len(result) == len(text) else bytes(len(result)))


@pytest.mark.parametrize(
    "result",
    [
        TrackedText.trusted("A").center(5),
        TrackedText.trusted("A%s") % "x",
        TrackedText.trusted("AB").replace("", "x"),
        "x".join([TrackedText.trusted("A")]),
        format(TrackedText.trusted("A"), ">3"),
    ],
)
def test_operations_that_are_not_followed_trust_nothing(result: str) -> None:
    assert not any(trust_of(result))


def test_formatting_keeps_track_of_literals_and_fields() -> None:
    fields = {"0": "a", "1": tracked("B"), "x.y": 7}
    result = formatted(TrackedText.trusted("A{}{{{}}}A{x.y}"), lambda name: fields[name])
    assert result == "Aa{B}A7"
    assert trust_of(result) == bytes([1, 0, 1, 1, 1, 1, 0])


@pytest.mark.parametrize(
    "template", [tracked("a{}"), TrackedText.trusted("{:>3}"), TrackedText.trusted("{!r}")]
)
def test_formatting_that_is_not_followed_is_left_to_others(template: TrackedText) -> None:
    assert formatted(template, lambda name: "x") is None


def test_markup_escapes_what_it_is_joined_with_and_keeps_flags() -> None:
    markup = TrackedMarkup("<B>", bytes([1, 1, 1]))
    assert "<a>" + markup == "&lt;a&gt;<B>"
    assert trust_of("a" + markup) == bytes([0, 1, 1, 1])
    assert tracked("A<") + markup == "A&lt;<B>"
    assert markup + "'" == "<B>&#39;"
    assert markup + markup == "<B><B>"
    assert type(str(markup)) is TrackedText
    assert escaped('&<>"') == "&amp;&lt;&gt;&#34;"
