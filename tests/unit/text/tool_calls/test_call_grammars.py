"""Grammars of tool calls: what a model may write, and that its calls then fit their functions."""

from __future__ import annotations

import json
from random import Random

import jsonschema
import numpy as np
import pytest

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.engine.constraint.grammar import Grammars, Matcher
from rocmforge.engine.ipc.params import TokenPieces
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.output.grammar import Schema, json_schema_grammar
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls import FORMATS, CallArguments, CallBegin, CannotEnforce, tool_grammar
from tests.api import tiny
from tests.support.files.tool_calls import NO_ARGUMENTS, SCHEMAS, shown


def grammars_of(tokenizer: Tokenizer) -> Grammars:
    pieces = TokenPieces(
        pieces=tokenizer.piece_tables(skip_special=False).data,
        special_ids=tuple(sorted(tokenizer.special_ids)),
        eos_ids=tokenizer.eos_ids,
    )
    return Grammars(pieces, tokenizer.vocab_size)


def matcher_of(tokenizer: Tokenizer, grammar: str) -> Matcher:
    return grammars_of(tokenizer).matcher(grammar)


def tokenizer_for(name: str, *, has_control_tokens: bool = False) -> Tokenizer:
    """A tokenizer that has the first mark of a format as a control token; of harmony, all."""
    data = tiny.metadata()
    controls = [*FORMATS[name].markers]
    if name != "harmony":
        controls = controls[:has_control_tokens]
    for token, spelling in enumerate(controls, start=tiny.VOCAB_SIZE // 2):
        data["tokenizer.ggml.tokens"][token] = spelling
        data["tokenizer.ggml.token_type"][token] = TokenType.CONTROL
    return Tokenizer(read_tokenizer(data))


def drawn(
    tokenizer: Tokenizer,
    matcher: Matcher,
    random: Random,
    limit: int = 3000,
    *,
    is_short: bool = False,
) -> str | None:
    """A random text of a grammar, ended as soon as that may be if short; None = it does not end."""
    ids: list[int] = []
    mask = np.zeros(-(-tokenizer.vocab_size // 32), np.uint32)
    for _ in range(limit):
        matcher.fill(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token = int(random.choice(allowed))
        if is_short and not {*tokenizer.eos_ids}.isdisjoint(allowed.tolist()):
            token = tokenizer.eos_ids[0]
        assert matcher.advance(token), matcher.error
        if token in tokenizer.eos_ids:
            return tokenizer.decode(ids, skip_special=False)
        ids.append(token)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_control", [False, True])
def test_forced_calls_are_read_back_and_validate(name: str, is_control: bool) -> None:
    form = FORMATS[name]
    tokenizer = tokenizer_for(name, has_control_tokens=is_control)
    schemas = {"weather": SCHEMAS["weather"], "now": {"type": "object", "properties": {}}}
    grammar = tool_grammar(form, tokenizer, schemas, parallel=True)
    num_calls = 0
    for seed in range(12):
        answer = drawn(tokenizer, matcher_of(tokenizer, grammar), Random(seed))
        if answer is None:
            continue
        parser = form.parser(schemas, None)
        arguments: list[str] = []
        names: list[str] = []
        said = [item for c in shown(name, answer) for item in parser.push(c)] + parser.finish()
        for item in said:
            match item:
                case CallBegin():
                    names.append(item.name)
                    arguments.append("")
                case CallArguments():
                    arguments[item.index] += item.text
                case str() if not form.splits_reasoning:
                    pytest.fail(f"{item!r} is text in {answer!r}")
        assert names, answer
        for function, text in zip(names, arguments, strict=True):
            jsonschema.validate(json.loads(text), schemas[function])
        num_calls += len(names)
    assert num_calls > 3


@pytest.mark.parametrize("name", FORMATS)
def test_one_call_only_unless_they_may_be_parallel(name: str) -> None:
    tokenizer = tokenizer_for(name)
    grammar = tool_grammar(FORMATS[name], tokenizer, NO_ARGUMENTS, parallel=False)
    answer = drawn(tokenizer, matcher_of(tokenizer, grammar), Random(1))
    assert answer is not None
    assert answer.count("now") == 1


@pytest.mark.parametrize("name", ["qwen3-coder", "glm4", "gemma4"])
@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"type": "object", "minProperties": 1}, "minProperties"),
        ({"properties": {"a": {"type": "string", "not": {"const": "x"}}}}, "not"),
        ({"properties": {}, "required": ["a"]}, "'a'"),
    ],
)
def test_what_a_format_cannot_express_is_refused(
    name: str, parameters: Schema, reason: str
) -> None:
    with pytest.raises(CannotEnforce, match=reason) as refused:
        tool_grammar(FORMATS[name], tokenizer_for(name), {"f": parameters}, parallel=False)
    assert refused.value.function == "f"


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_may_be_a_call_or_something_else(name: str) -> None:
    form, tokenizer = FORMATS[name], tokenizer_for(name)
    other = json_schema_grammar({"const": "nothing"})
    forced = tool_grammar(form, tokenizer, NO_ARGUMENTS, parallel=False)
    either = tool_grammar(form, tokenizer, NO_ARGUMENTS, parallel=False, otherwise=other)
    call = drawn(tokenizer, matcher_of(tokenizer, forced), Random(0))
    assert call is not None
    nothing = '"nothing"'
    if name == "harmony":
        nothing = f"<|channel|>final<|message|>{nothing}"
    for answer in (nothing, call):
        matcher = matcher_of(tokenizer, either)
        for token in [*tokenizer.encode(answer, parse_special=True), *tokenizer.eos_ids[:1]]:
            assert matcher.advance(token), (answer, matcher.error)


NESTED: Schema = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string", "maxLength": 5}},
        "place": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Oslo", "Rom: {x}"]},
                "at": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["names", "place"],
}


@pytest.mark.slow
@pytest.mark.parametrize("has_control_tokens", [False, True])
def test_gemma_writes_parts_of_arguments_as_it_was_trained_to(*, has_control_tokens: bool) -> None:
    form = FORMATS["gemma4"]
    data = tiny.metadata()
    if has_control_tokens:
        for token, spelling in enumerate(form.markers, start=tiny.VOCAB_SIZE // 2):
            data["tokenizer.ggml.tokens"][token] = spelling
            data["tokenizer.ggml.token_type"][token] = TokenType.CONTROL
    tokenizer = Tokenizer(read_tokenizer(data))
    grammar = tool_grammar(form, tokenizer, {"f": NESTED}, parallel=False)
    answer = (
        '<|tool_call>call:f{names:[<|"|>a "b"<|"|>,<|"|><|"|>],'
        'place:{city:<|"|>Rom: {x}<|"|>,at:[1,2.5]}}<tool_call|>'
    )
    answers = [answer]
    matcher = matcher_of(tokenizer, grammar)
    for token in [*tokenizer.encode(answer, parse_special=True), tokenizer.eos_ids[0]]:
        assert matcher.advance(token), matcher.error
    for seed in range(6):
        answers.append(drawn(tokenizer, matcher_of(tokenizer, grammar), Random(seed)) or answer)
    assert len(set(answers)) > 3
    for written in answers:
        parser = form.parser({"f": NESTED}, None)
        said = parser.push(written) + parser.finish()
        text = "".join(item.text for item in said if isinstance(item, CallArguments))
        jsonschema.validate(json.loads(text), NESTED)


def free_grammar(name: str, tokenizer: Tokenizer, *, parallel: bool = True) -> str:
    schemas = {"weather": SCHEMAS["weather"], "now": NO_ARGUMENTS["now"]}
    return tool_grammar(FORMATS[name], tokenizer, schemas, parallel=parallel, is_free=True)


OPENINGS = {
    "harmony": "<|channel|>commentary to=functions.",
    "hermes": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
    "mistral-v11": "[TOOL_CALLS]",
    "functionary": "<function=",
    "phi4-mini": "<|tool_call|>",
    "granite": "<|tool_call|>",
    "nemotron-v2": "<TOOLCALL>",
    "qwen3-coder": "<tool_call>",
    "seed-oss": "<seed:tool_call>",
    "glm4": "<tool_call>",
    "minimax": "<minimax:tool_call>",
    "gemma4": "<|tool_call>",
    "lfm2": "<|tool_call_start|>",
}


def test_where_text_may_begin_like_a_call_nothing_is_held_to_anything() -> None:
    without = {name for name in FORMATS if not free_grammar(name, tokenizer_for(name))}
    assert without == FORMATS.keys() - OPENINGS.keys() == {"llama3", "pythonic", "phi4"}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPENINGS)
@pytest.mark.parametrize("is_control", [False, True])
def test_a_call_that_the_model_begins_fits_its_function(name: str, is_control: bool) -> None:
    form = FORMATS[name]
    tokenizer = tokenizer_for(name, has_control_tokens=is_control)
    grammars = grammars_of(tokenizer)
    grammar = free_grammar(name, tokenizer)
    text = "" if name == "harmony" else "1 < 2, [I look.\n"
    begun = tokenizer.encode(text + OPENINGS[name], parse_special=True)
    num_calls = 0
    for seed in range(6):
        matcher = grammars.matcher(grammar)
        for token in begun:
            assert matcher.advance(token), matcher.error
        answer = drawn(tokenizer, matcher, Random(seed), is_short=True)
        if answer is None:  # a list without an end
            continue
        parser = form.parser(SCHEMAS | NO_ARGUMENTS, None)
        said = parser.push(shown(name, tokenizer.decode(begun, skip_special=False) + answer))
        said += parser.finish()
        arguments = ["" for item in said if isinstance(item, CallBegin)]
        names = [item.name for item in said if isinstance(item, CallBegin)]
        for item in said:
            if isinstance(item, CallArguments):
                arguments[item.index] += item.text
        assert names, answer
        for function, written in zip(names, arguments, strict=True):
            jsonschema.validate(json.loads(written), (SCHEMAS | NO_ARGUMENTS)[function])
        num_calls += len(names)
    assert num_calls > 0


@pytest.mark.parametrize("name", OPENINGS)
def test_text_without_a_call_is_as_free_as_ever(name: str) -> None:
    tokenizer = tokenizer_for(name)
    matcher = matcher_of(tokenizer, free_grammar(name, tokenizer))
    text = "1 < 2 <tool [TOOL {x} <|im_start|>\n"
    if name == "harmony":
        text = "<|channel|>final<|message|>1 < 2 <tool {x}"
    for token in [*tokenizer.encode(text, parse_special=True), tokenizer.eos_ids[0]]:
        assert matcher.advance(token), matcher.error


@pytest.mark.parametrize("name", sorted(OPENINGS.keys() - {"harmony"}))
def test_one_call_ends_what_is_held_where_there_may_be_one_only(name: str) -> None:
    tokenizer = tokenizer_for(name)
    matcher = matcher_of(tokenizer, free_grammar(name, tokenizer, parallel=False))
    alone = tool_grammar(FORMATS[name], tokenizer, NO_ARGUMENTS, parallel=False)
    call = drawn(tokenizer, matcher_of(tokenizer, alone), Random(0))
    assert call is not None
    answer = f"{call} and {OPENINGS[name]} again"
    for token in [*tokenizer.encode(answer, parse_special=True), tokenizer.eos_ids[0]]:
        assert matcher.advance(token), matcher.error
