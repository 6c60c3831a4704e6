"""Tool calls as models write them: how each family spells them, and how to read that as it comes.

A new format is a row in `formats`; one of another kind is a module beside `json_calls`.
"""

from rocmforge.text.tool_calls.base import (
    CallArguments,
    CallBegin,
    CallFormat,
    CallParser,
    CannotEnforce,
    Said,
)
from rocmforge.text.tool_calls.formats import FORMATS, format_for, tool_grammar, tools_as_text
from rocmforge.text.tool_calls.harmony import HarmonyFormat, begins_message, begun, spelled

__all__ = [
    "FORMATS",
    "CallArguments",
    "CallBegin",
    "CallFormat",
    "CallParser",
    "CannotEnforce",
    "HarmonyFormat",
    "Said",
    "begins_message",
    "begun",
    "format_for",
    "spelled",
    "tool_grammar",
    "tools_as_text",
]
