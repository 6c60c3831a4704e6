"""Functions that tests of tool calls know, and answers as parsers get them."""

from __future__ import annotations

from collections.abc import Iterable

from rocmforge.text.output.grammar import Schema
from rocmforge.text.output.reasoning import Reasoning
from rocmforge.text.tool_calls import FORMATS, CallArguments, CallBegin
from rocmforge.text.tool_calls.base import CallParser

SCHEMAS: dict[str, Schema] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 1, "maxLength": 20},
            "days": {"type": "integer", "minimum": 1},
            "unit": {"enum": ["c", "f"]},
            "deep": {"type": "object", "properties": {"a": {"type": "array"}}},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "add": {"type": "object"},
}
NO_ARGUMENTS: dict[str, Schema] = {
    "now": {"type": "object", "properties": {}, "additionalProperties": False}
}


def shown(form: str, answer: str) -> str:
    """The answer as the format's parser gets it."""
    for spelling, mark in FORMATS[form].markers.items():
        answer = answer.replace(spelling, mark)
    return answer


def read_pieces(
    parser: CallParser, pieces: Iterable[str]
) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, text and calls of an answer, whose arguments come before the next call."""
    thoughts, text = "", ""
    calls: list[tuple[str, str]] = []
    for item in [item for piece in pieces for item in parser.push(piece)] + parser.finish():
        match item:
            case Reasoning():
                thoughts += item.text
            case str():
                text += item
            case CallBegin():
                assert item.index == len(calls)
                calls.append((item.name, ""))
            case CallArguments():
                name, arguments = calls[item.index]
                assert item.index == len(calls) - 1
                calls[item.index] = (name, arguments + item.text)
    return thoughts, text, calls
