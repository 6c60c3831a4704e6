"""Reading tool calls as they arrive, in each family's spelling."""

from __future__ import annotations

import json
import typing
from dataclasses import asdict
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocmforge.settings import Settings
from rocmforge.text.tool_calls import FORMATS, CallArguments, CallBegin, format_for
from tests.support.files.tool_calls import SCHEMAS, read_pieces, shown

Outcome = tuple[str, list[tuple[str, str]]]


def read(form: str, pieces: list[str], max_calls: int | None = None) -> Outcome:
    """All text, and all calls."""
    parser = FORMATS[form].parser(SCHEMAS, max_calls)
    _, text, calls = read_pieces(parser, pieces)
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
        "mistral-v11",
        'Hm.[TOOL_CALLS]weather[ARGS]{"city": "Oslo]["}[TOOL_CALLS]add[ARGS]{}',
        ("Hm.", [("weather", '{"city": "Oslo]["}'), ("add", "{}")]),
    ),
    ("mistral-v11", "[TOOL_CALLS]other[ARGS]{}", ("[TOOL_CALLS]other[ARGS]{}", [])),
    (
        "mistral-v11",
        '[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{"x": 1}',
        ("", [("add", '{"x": 1}')]),
    ),
    (
        "functionary",
        '<function=weather>{"city": "Oslo"}</function>\n<function=add>{}</function>',
        ("", [("weather", '{"city": "Oslo"}'), ("add", "{}")]),
    ),
    (
        "phi4",
        'functools[{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {}}]',
        ("", [("add", '{"a": 1}'), ("add", "{}")]),
    ),
    (
        "phi4-mini",
        '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|/tool_call|>',
        ("", [("add", '{"a": 1}')]),
    ),
    (
        "granite",
        '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]',
        ("", [("add", '{"a": 1}')]),
    ),
    (
        "nemotron-v2",
        'Hm.\n<TOOLCALL>[{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {}}]'
        "</TOOLCALL>",
        ("Hm.\n", [("add", '{"a": 1}'), ("add", "{}")]),
    ),
    (
        "qwen3-coder",
        'I\'ll look.\n<tool_call>\n<function=weather>\n<parameter=city>\nNew "York"\n</par\n'
        "</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=deep>\n"
        '{"a": [1, "</tool_call>"]}\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=add>\n</function>\n</tool_call>\n",
        (
            "I'll look.\n",
            [
                (
                    "weather",
                    '{"city": "New \\"York\\"\\n</par", "days": 3, '
                    '"deep": {"a": [1, "</tool_call>"]}}',
                ),
                ("add", "{}"),
            ],
        ),
    ),
    (
        "qwen3-coder",
        "<tool_call><function=add><parameter=x>True</parameter><parameter=y>a b</parameter>"
        "</function></tool_call>",
        ("", [("add", '{"x": true, "y": "a b"}')]),
    ),
    (
        "qwen3-coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nOs",
        ("", [("weather", '{"city": "Os')]),
    ),
    ("qwen3-coder", "<tool_call>\n<function=other>", ("<tool_call>\n<function=other>", [])),
    (
        "seed-oss",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo\n</parameter>\n</function>\n"
        "</seed:tool_call>",
        ("", [("weather", '{"city": "Oslo\\n"}')]),
    ),
    (
        "minimax",
        '<minimax:tool_call><invoke name="add"><parameter name="x">1</parameter></invoke>'
        '</minimax:tool_call><minimax:tool_call>\n<invoke name="add"></invoke>',
        ("", [("add", '{"x": 1}'), ("add", "{}")]),
    ),
    (
        "minimax",
        'Hm.\n<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">São "P" 1 < 2'
        '</parameter>\n<parameter name="deep">{"a": [1]}</parameter>\n</invoke>\n'
        '<invoke name="add">\n</invoke>\n</minimax:tool_call> So.',
        (
            "Hm.\nSo.",
            [("weather", '{"city": "São \\"P\\" 1 < 2", "deep": {"a": [1]}}'), ("add", "{}")],
        ),
    ),
    (
        "minimax",
        '<minimax:tool_call><invoke name="other"></invoke></minimax:tool_call>',
        ('<minimax:tool_call><invoke name="other"></invoke></minimax:tool_call>', []),
    ),
    (
        "glm4",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
        ("", [("weather", '{"city": "Oslo"}')]),
    ),
    (
        "glm4",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo\n</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        ("", [("weather", '{"city": "Oslo\\n", "days": 2}')]),
    ),
    (
        "glm4",
        "\n<tool_call>add</tool_call><tool_call>add\n</tool_call>",
        ("\n", [("add", "{}"), ("add", "{}")]),
    ),
    (
        "pythonic",
        "[weather(city='O\\'Neill, \"x\"', deep={'a': [1, None, -2.5]}), "
        'add(x=True, y=")"), add()]',
        (
            "",
            [
                ("weather", '{"city": "O\'Neill, \\"x\\"", "deep": {"a": [1, null, -2.5]}}'),
                ("add", '{"x": true, "y": ")"}'),
                ("add", "{}"),
            ],
        ),
    ),
    ("pythonic", "[1, 2] is a list", ("[1, 2] is a list", [])),
    ("pythonic", "Say [add(x=1)]", ("Say [add(x=1)]", [])),
    (
        "gemma4",
        'Ok<|tool_call>call:weather{city:<|"|>a "b", {c}<|"|>,deep:{a:[1,<|"|>k:v<|"|>]}}'
        "<tool_call|><|tool_call>call:add{}<tool_call|>",
        (
            "Ok",
            [
                ("weather", '{"city": "a \\"b\\", {c}", "deep": {"a":[1,"k:v"]}}'),
                ("add", "{}"),
            ],
        ),
    ),
    (
        "gemma4",
        '<|tool_call>call:weather{ city : <|"|><|"|> , days:3,unit:<|"|>}\n<|x|><|"|>}<tool_call|>',
        ("", [("weather", '{"city": "", "days": 3, "unit": "}\\n<|x|>"}')]),
    ),
    (
        "lfm2",
        'I look.<|tool_call_start|>[weather(city="Oslo, [1)", days=3), add(x=True, y=null)]'
        "<|tool_call_end|>",
        (
            "I look.",
            [
                ("weather", '{"city": "Oslo, [1)", "days": 3}'),
                ("add", '{"x": true, "y": null}'),
            ],
        ),
    ),
    (
        "lfm2",
        "<|tool_call_start|>[add()]<|tool_call_end|>\n<|tool_call_start|>[add(x='1')]",
        ("", [("add", "{}"), ("add", '{"x": "1"}')]),
    ),
    (
        "lfm2",
        "<|tool_call_start|>[other(x=1)]<|tool_call_end|>",
        ("<|tool_call_start|>[other(x=1)]<|tool_call_end|>", []),
    ),
    ("lfm2", "[add(x=1)] is no call", ("[add(x=1)] is no call", [])),
    (
        "llama3",
        'Like {"name": "add", "parameters": {}}',
        ('Like {"name": "add", "parameters": {}}', []),
    ),
    (
        "harmony",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
        ("I look.", [("weather", '{"city": "Oslo"}')]),
    ),
]


@pytest.mark.parametrize(("form", "answer", "expected"), ANSWERS)
def test_calls_and_text_are_told_apart(form: str, answer: str, expected: Outcome) -> None:
    assert read(form, [shown(form, answer)]) == expected


@pytest.mark.parametrize(("form", "answer", "expected"), ANSWERS)
def test_the_split_into_pieces_does_not_matter(form: str, answer: str, expected: Outcome) -> None:
    assert read(form, list(shown(form, answer))) == expected


@given(st.sampled_from(ANSWERS), st.lists(st.integers(0, 150), max_size=8))
def test_no_split_matters(case: tuple[str, str, Outcome], cuts: list[int]) -> None:
    form, answer, expected = case
    answer = shown(form, answer)
    places = [0, *sorted(cuts), len(answer)]
    pieces = [answer[a:b] for a, b in pairwise(places)]
    assert read(form, [*pieces[:-1], answer[sum(map(len, pieces[:-1])) :]]) == expected


LIKELY = (
    *("add", "weather", "other", "city", "x", "True", "1", "hello", "é", "\n", " ", ", ", ";"),
    *('"', "'", "\\", "{", "}", "[", "]", "(", ")", "=", ":", "<", "|", "/", '{"name": "add"', ">"),
    *('{"name": "add", "arguments": {"x": 1}}', '{"name": "add", "parameters": {"x": 1}}'),
    *('{"name": "other", "arguments": {}}', '{"arguments": {}, "name": "add"}', "add()"),
    *("add(x=1)", "call:add{x:1}", 'add[ARGS]{"x": 1}', "<function=add>", "<parameter=city>\n"),
)


@st.composite
def answers_and_cuts(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    """A format, an answer that has much of what it is spelled with, and the answer in pieces."""
    form = draw(st.sampled_from(list(FORMATS)))
    spellings = [part for part in asdict(FORMATS[form]).values() if isinstance(part, str)]  # type: ignore[call-overload]
    calls = [answer for name, answer, _ in ANSWERS if name == form]
    parts = st.one_of(st.sampled_from([*spellings, *calls]), st.sampled_from(LIKELY), st.text())
    answer = shown(form, "".join(draw(st.lists(parts, max_size=12))))
    cuts = draw(st.lists(st.integers(0, len(answer)), max_size=8))
    return form, answer, [answer[a:b] for a, b in pairwise([0, *sorted(cuts), len(answer)])]


ADD = "<tool_call>\n<function=add>\n</function>\n</tool_call>"


@pytest.mark.slow
@settings(max_examples=400)
@example(("qwen3-coder", f"{ADD} so \n{ADD}", [ADD, " ", "so ", "\n", ADD]))
@given(answers_and_cuts())
def test_a_stream_says_what_the_whole_answer_says(case: tuple[str, str, list[str]]) -> None:
    form, answer, pieces = case
    assert read(form, pieces) == read(form, [answer]) == read(form, list(answer))


@pytest.mark.parametrize("form", FORMATS)
def test_text_behind_a_call_is_kept_and_the_space_between_them_is_not(form: str) -> None:
    call = next(answer for name, answer, (_, calls) in ANSWERS if name == form and calls).rstrip()
    text, calls = read(form, [f"{shown(form, call)}\n And \n so on. \n"])
    assert calls
    assert text.endswith("And \n so on. \n")
    assert "\n And" not in text


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = FORMATS["hermes"].parser(SCHEMAS, None)
    begun = parser.push('<tool_call>{"name": "add", "arguments": {"a"')
    assert begun == [CallBegin(0, "add"), CallArguments(0, '{"a"')]
    assert parser.push(": 1") == [CallArguments(0, ": 1")]


def test_a_string_in_quotes_of_its_own_is_passed_on_as_it_comes() -> None:
    parser = FORMATS["gemma4"].parser(SCHEMAS, None)
    begun = parser.push('<|tool_call>call:add{text:<|"|>one "two"\n<|')
    assert begun == [
        CallBegin(0, "add"),
        CallArguments(0, '{"text": '),
        CallArguments(0, '"'),
        CallArguments(0, 'one \\"two\\"\\n'),
    ]
    assert parser.push("three") == [CallArguments(0, "<|three")]
    assert parser.push('<|"|>') == [CallArguments(0, '"')]
    assert parser.push(",n:1") == []
    assert parser.push("}<tool_call|>") == [
        CallArguments(0, ', "n": '),
        CallArguments(0, "1"),
        CallArguments(0, "}"),
    ]


def test_a_string_that_is_cut_is_passed_on_as_far_as_it_came() -> None:
    answer = '<|tool_call>call:add{text:<|"|>so far'
    assert read("gemma4", [answer]) == ("", [("add", '{"text": "so far')])


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
        ("[TOOL_CALLS]{{ name }}[ARGS]{{ x }}", "mistral-v11"),
        ('{"name": function, "parameters": dictionary}', "llama3"),
        ("<tool_call>\\n<function=f>\\n<parameter=p>", "qwen3-coder"),
        ("<tool_call>{function-name}\\n<arg_key>", "glm4"),
        ("<minimax:tool_call>\\n<invoke name=", "minimax"),
        ("functools[{'name': 'f'}]", "phi4"),
        ("<|tool|>{{ tools }}<|/tool|> then <|tool_call|>[]<|/tool_call|>", "phi4-mini"),
        ("'<|tool_call>call:' + name", "gemma4"),
        # As Granite 3, Granite 4, Nemotron Nano 2 and Nemotron 3 Nano have them.
        ("answer with <|tool_call|> followed by a JSON list of tools used", "granite"),
        ('{{- \'<tool_call>\\n{"name": "\' }}', "hermes"),
        ('\'<TOOLCALL>[{{"name": "tool_name1", \'', "nemotron-v2"),
        ("<tool_call>\\n<function=f>\\n<parameter=example_parameter_1>\\nvalue_1", "qwen3-coder"),
        ('"<|tool_call_start|>[" + calls', "lfm2"),
        ('"List of tools: <|tool_list_start|>[" + tools', "lfm2"),
        ('"List of tools: [" + tools', "lfm2"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ("<|start|>assistant<|channel|>final<|message|>{{ tool_calls }}", "harmony"),
        ("knows no tools", "hermes"),
    ],
)
def test_the_template_tells_the_format(template: str, name: str) -> None:
    assert format_for(template) is FORMATS[name]


def test_the_operator_can_choose_every_format() -> None:
    hint = typing.get_type_hints(Settings)["tool_format"]
    choices = typing.get_args(hint)
    assert {*choices} == {"auto", *FORMATS}
