"""Reading gpt-oss' answers: channels, calls, and what becomes of answers that are cut or odd."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmforge.engine.constraint.grammar import Grammars
from rocmforge.engine.ipc.params import TokenPieces
from rocmforge.text.output.grammar import Schema, find_problem
from rocmforge.text.tool_calls import (
    FORMATS,
    CallBegin,
    HarmonyFormat,
    spelled,
    tool_grammar,
)
from rocmforge.text.tool_calls.harmony import MARKS
from tests.api.harmony import harmony_text
from tests.support.files.tool_calls import read_pieces

SCHEMAS: dict[str, Schema] = {"f": {"type": "object"}, "get_weather": {"type": "object"}}
GOLDENS = json.loads((Path(__file__).parents[3] / "data/text/harmony.json").read_text())

Outcome = tuple[str, str, list[tuple[str, str]]]


def shown(answer: str) -> str:
    """The answer as the parser gets it."""
    for spelling, mark in MARKS.items():
        answer = answer.replace(spelling, mark)
    return answer


def read(pieces: list[str], begun: str = "") -> Outcome:
    """Reasoning, text and calls of an answer whose marks are already as the parser gets them."""
    parser = FORMATS["harmony"].parser(SCHEMAS, None)
    parser.push(begun)
    return read_pieces(parser, pieces)


THINK = "<|channel|>analysis<|message|>Hm.<|end|>"
NEXT = "<|start|>assistant"
ANSWERS: list[tuple[str, Outcome]] = [
    (f"{THINK}{NEXT}<|channel|>final<|message|>Hello!", ("Hm.", "Hello!", [])),
    ("<|channel|>final<|message|>Hello!<|return|>", ("", "Hello!", [])),
    # The recipient stands behind the channel, or before it.
    (
        f'{THINK}{NEXT}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"a": 1}}',
        ("Hm.", "", [("f", '{"a": 1}')]),
    ),
    (
        f'{THINK}{NEXT} to=functions.f<|channel|>commentary json<|message|>{{"a": 1}}<|call|>',
        ("Hm.", "", [("f", '{"a": 1}')]),
    ),
    (" to=functions.f<|channel|>analysis<|message|>{}", ("", "", [("f", "{}")])),
    ("<|channel|>commentary to=functions.f<|message|> \n", ("", "", [("f", "{}")])),
    # A preamble is text.
    (
        f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}<|channel|>commentary to=functions.f "
        "<|constrain|>json<|message|>{}",
        ("", "I look.", [("f", "{}")]),
    ),
    # Several messages of a kind.
    (f"{THINK}{NEXT}{THINK}{NEXT}<|channel|>final<|message|>A", ("Hm.\n\nHm.", "A", [])),
    (
        f"<|channel|>commentary<|message|>A<|end|>{NEXT}<|channel|>final<|message|>B",
        ("", "A\n\nB", []),
    ),
    # Two calls, where something has let the model go on.
    (
        f" to=functions.f<|channel|>commentary json<|message|>{{}}<|call|>{NEXT} "
        'to=functions.get_weather<|channel|>commentary json<|message|>{"x":[]}<|call|>',
        ("", "", [("f", "{}"), ("get_weather", '{"x":[]}')]),
    ),
    # Arguments that are not JSON are the caller's to judge.
    (
        " to=functions.f<|channel|>commentary code<|message|>print('''\na''')<|call|>",
        ("", "", [("f", "print('''\na''')")]),
    ),
    # Nobody has offered these.
    ("<|channel|>commentary to=functions.no<|message|>{}", ("", "{}", [])),
    ("<|channel|>analysis to=python<|message|>1 + 1", ("1 + 1", "", [])),
    # Cut, at the most awkward places.
    ("<|channel|>analysis<|message|>Hm", ("Hm", "", [])),
    ("<|channel|>analy", ("", "", [])),
    (" to=functions.f", ("", "", [])),
    (f"{THINK}<|start|>assis", ("Hm.", "", [])),
    (
        f'{THINK}{NEXT} to=functions.f<|channel|>commentary json<|message|>{{"a',
        ("Hm.", "", [("f", '{"a')]),
    ),
    # A message that was not ended before the next.
    (f"<|channel|>analysis<|message|>Hm.{NEXT}<|channel|>final<|message|>A", ("Hm.", "A", [])),
    ("<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>A", ("Hm.", "A", [])),
    # No harmony at all.
    ("Hello!", ("", "Hello!", [])),
    ("x" * 2000, ("", "x" * 2000, [])),
    ("", ("", "", [])),
    ("<|message|>A", ("", "A", [])),
    ("<|channel|>other<|message|>A", ("", "A", [])),
]


@pytest.mark.parametrize(("answer", "expected"), ANSWERS)
def test_channels_and_recipients_tell_what_a_message_is(answer: str, expected: Outcome) -> None:
    assert read([shown(answer)]) == expected
    assert read(list(shown(answer))) == expected


def test_marks_that_the_model_spells_out_are_text() -> None:
    said = "Write <|end|><|start|>assistant<|channel|>final<|message|> so."
    answer = shown("<|channel|>final<|message|>") + said
    assert read([answer]) == ("", said, [])


def test_an_answer_goes_on_where_the_prompt_has_begun_it() -> None:
    assert read(["Hello!"], begun="assistant") == ("", "Hello!", [])
    assert read(["lo!"], begun=shown("assistant<|channel|>final<|message|>")) == ("", "lo!", [])
    thought = shown(f" more.<|end|>{NEXT}<|channel|>final<|message|>A")
    begun = shown("assistant<|channel|>analysis<|message|>")
    assert read([thought], begun=begun) == (" more.", "A", [])


def test_calls_beyond_the_limit_are_dropped() -> None:
    call = shown(f"{NEXT} to=functions.f<|channel|>commentary json<|message|>{{}}<|call|>")
    parser = FORMATS["harmony"].parser(SCHEMAS, 1)
    said = parser.push(call * 3) + parser.finish()
    assert [item for item in said if isinstance(item, CallBegin)] == [CallBegin(0, "f")]


def test_logs_have_the_marks_as_people_know_them() -> None:
    assert spelled(shown(ANSWERS[0][0])) == ANSWERS[0][0]


@pytest.mark.parametrize(("budget", "most"), [(0, None), (3, 3), (2**31 - 1, 50), (None, 50)])
def test_a_budget_ends_the_thoughts(budget: int | None, most: int | None) -> None:
    tokenizer, _ = harmony_text()
    grammar = tool_grammar(
        HarmonyFormat(thinking_budget=budget), tokenizer, SCHEMAS, parallel=True, is_free=True
    )
    assert find_problem(grammar) == ""
    pieces = TokenPieces(
        pieces=tokenizer.piece_tables(skip_special=False).data,
        special_ids=tuple(sorted(tokenizer.special_ids)),
        eos_ids=tokenizer.eos_ids,
    )
    matcher = Grammars(pieces, tokenizer.vocab_size).matcher(grammar)
    begin = tokenizer.encode("<|channel|>analysis<|message|>", parse_special=True)
    if most is None:
        assert not all(matcher.advance(token) for token in begin)
        return
    word = tokenizer.encode("a", parse_special=False)
    thought = [*begin, *word * most]
    assert all(matcher.advance(token) for token in thought), matcher.error
    is_over = matcher.count_allowed(np.array(word, np.int32)) == 0
    assert is_over == (budget == 3)
    rest = tokenizer.encode(
        f"<|end|>{NEXT}<|channel|>final<|message|>A<|return|>", parse_special=True
    )
    assert all(matcher.advance(token) for token in rest), matcher.error


PARTS = st.one_of(
    st.sampled_from([*MARKS, *MARKS, "assistant", "analysis", "commentary", "final", " json"]),
    st.sampled_from([" to=functions.f", " to=", "functions.f", "{", '"a": 1', "}", "\n", " "]),
    st.sampled_from([answer for answer, _ in ANSWERS]),
    st.text(max_size=20),
)


@settings(max_examples=100)
@given(st.lists(PARTS, max_size=16), st.lists(st.integers(0, 400), max_size=8))
def test_no_answer_and_no_split_of_it_is_too_odd(parts: list[str], cuts: list[int]) -> None:
    answer = shown("".join(parts))
    places = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    whole = read([answer])
    assert read([answer[a:b] for a, b in pairwise(places)]) == whole == read(list(answer))
    thoughts, text, calls = whole
    for said in (thoughts, text, *[part for call in calls for part in call]):
        said.encode()  # no mark gets out


@pytest.mark.parametrize("case", GOLDENS["answers"], ids=lambda case: case["name"])
def test_openais_own_parser_finds_the_same_messages(case: dict[str, Any]) -> None:
    thoughts, text, calls = read([shown(case["text"])], begun="assistant")
    messages = case["messages"]
    called = [m for m in messages if (m["recipient"] or "").startswith("functions.")]
    others = [m for m in messages if m not in called]
    assert calls == [(m["recipient"].removeprefix("functions."), m["text"]) for m in called]
    assert thoughts == "\n\n".join(m["text"] for m in others if m["channel"] == "analysis")
    assert text == "\n\n".join(m["text"] for m in others if m["channel"] != "analysis")
