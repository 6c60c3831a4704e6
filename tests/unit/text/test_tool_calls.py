"""Reading tool calls as they arrive, in each family's spelling."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.engine.grammar import Grammars
from rocmforge.engine.params import TokenPieces
from rocmforge.text.tokenizer import Tokenizer
from rocmforge.text.tool_calls import (
    FORMATS,
    CallArguments,
    CallBegin,
    ToolCallParser,
    format_for,
    tool_grammar,
)
from tests.api import tiny

NAMES = ("weather", "add")
Outcome = tuple[str, list[tuple[str, str]]]


def read(form: str, pieces: list[str], max_calls: int | None = None) -> Outcome:
    """All text, and all calls."""
    parser = ToolCallParser(FORMATS[form], NAMES, max_calls)
    said = [item for piece in pieces for item in parser.push(piece)] + parser.finish()
    text = ""
    calls: list[tuple[str, str]] = []
    for item in said:
        match item:
            case str():
                text += item
            case CallBegin():
                assert item.index == len(calls)
                calls.append((item.name, ""))
            case CallArguments():
                name, arguments = calls[item.index]
                assert item.index == len(calls) - 1
                calls[item.index] = (name, arguments + item.text)
    return text, calls


TRICKY = '{"city": "}\\"{\\\\", "deep": {"a": [1, {"b": "</tool_call>"}]}}'
ANSWERS: list[tuple[str, str, Outcome]] = [
    ("hermes", "no call at all", ("no call at all", [])),
    ("hermes", "1 < 2 <tool", ("1 < 2 <tool", [])),
    (
        "hermes",
        f'Let me see.<tool_call>\n{{"name": "weather", "arguments": {TRICKY}}}\n</tool_call>',
        ("Let me see.", [("weather", TRICKY)]),
    ),
    (
        "hermes",
        '<tool_call>{"name":"add","arguments":{}}</tool_call>\n'
        '<tool_call>{ "name" : "weather" , "arguments" : {"x":1} }</tool_call>',
        ("", [("add", "{}"), ("weather", '{"x":1}')]),
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"x":1}, "name": "add"}</tool_call>',
        ("", [("add", '{"x": 1}')]),
    ),
    (
        "hermes",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', []),
    ),
    ("hermes", "<tool_call>\nnot JSON", ("<tool_call>\nnot JSON", [])),
    ("hermes", '<tool_call>{"name": "ad', ('<tool_call>{"name": "ad', [])),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"x": "cut',
        ("", [("add", '{"x": "cut')]),
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, '
        '{"name": "weather", "arguments": {}}]',
        ("", [("add", '{"a": 1}'), ("weather", "{}")]),
    ),
    ("mistral", "plain [TOOL", ("plain [TOOL", [])),
    (
        "llama3",
        '{"name": "add", "parameters": {"a": 1}}; {"name": "weather", "parameters": {}}',
        ("", [("add", '{"a": 1}'), ("weather", "{}")]),
    ),
    ("llama3", '{"answer": 42}', ('{"answer": 42}', [])),
    ("llama3", "[1, 2] is a list", ("[1, 2] is a list", [])),
    (
        "llama3",
        'Like {"name": "add", "parameters": {}}',
        ('Like {"name": "add", "parameters": {}}', []),
    ),
]


@pytest.mark.parametrize(("form", "answer", "expected"), ANSWERS)
def test_calls_and_text_are_told_apart(form: str, answer: str, expected: Outcome) -> None:
    assert read(form, [answer]) == expected


@pytest.mark.parametrize(("form", "answer", "expected"), ANSWERS)
def test_the_split_into_pieces_does_not_matter(form: str, answer: str, expected: Outcome) -> None:
    assert read(form, list(answer)) == expected


@given(st.sampled_from(ANSWERS), st.lists(st.integers(0, 150), max_size=8))
def test_no_split_matters(case: tuple[str, str, Outcome], cuts: list[int]) -> None:
    form, answer, expected = case
    places = [0, *sorted(cuts), len(answer)]
    pieces = [answer[a:b] for a, b in pairwise(places)]
    assert read(form, [*pieces[:-1], answer[sum(map(len, pieces[:-1])) :]]) == expected


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = ToolCallParser(FORMATS["hermes"], NAMES, None)
    begun = parser.push('<tool_call>{"name": "add", "arguments": {"a"')
    assert begun == [CallBegin(0, "add"), CallArguments(0, '{"a"')]
    assert parser.push(": 1") == [CallArguments(0, ": 1")]


def test_calls_beyond_the_limit_are_dropped() -> None:
    one = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    assert read("hermes", [one * 3], max_calls=1) == ("", [("add", "{}")])


@given(st.sampled_from(list(FORMATS)), st.text(alphabet='{}[]"\\:,<>/ntolc_aame', max_size=60))
def test_whatever_is_no_call_comes_back_as_text(form: str, answer: str) -> None:
    assert read(form, [answer]) == (answer, [])


def test_arguments_read_back_as_what_was_written() -> None:
    _, calls = read("hermes", [ANSWERS[2][1]])
    assert json.loads(calls[0][1]) == json.loads(TRICKY)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>\\n' }}", "hermes"),
        ("[TOOL_CALLS] {{ x }}", "mistral"),
        ('{"name": function, "parameters": dictionary}', "llama3"),
        ("knows no tools", "hermes"),
    ],
)
def test_the_template_tells_the_format(template: str, name: str) -> None:
    assert format_for(template) is FORMATS[name]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_control", [False, True])
def test_forced_calls_are_written_as_they_are_read(name: str, is_control: bool) -> None:
    form = FORMATS[name]
    data = tiny.metadata()
    if is_control and form.begin:
        data["tokenizer.ggml.tokens"][tiny.BOS] = form.begin
    tokenizer = Tokenizer.from_metadata(data)
    grammar = tool_grammar(form, tokenizer, {"add": {"type": "object"}}, parallel=True)
    pieces = TokenPieces(
        pieces=tokenizer.piece_tables(skip_special=False).data,
        special_ids=tuple(sorted(tokenizer.special_ids)),
        eos_ids=tokenizer.eos_ids,
    )
    matcher = Grammars(pieces, tokenizer.vocab_size).matcher(grammar)
    call = f'{{"name": "add", "{form.arguments}": {{}}}}'
    one = f"{form.begin}{call}{form.end}" if form.end else call
    around = "" if form.end else form.begin + form.list_begin
    answer = f"{around}{one}{form.separator}{one}{form.list_end}"
    for token in [*tokenizer.encode(answer, parse_special=True), tiny.IM_END]:
        assert matcher.advance(token), matcher.error
    assert read(name, [answer]) == ("", [("add", "{}"), ("add", "{}")])
