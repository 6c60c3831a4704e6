"""Functions that tests of tool calls know, and answers as parsers get them."""

from __future__ import annotations

from rocmforge.text.output.grammar import Schema
from rocmforge.text.tool_calls import FORMATS

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
