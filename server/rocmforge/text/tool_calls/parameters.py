"""Parameters of a function one by one, for formats that do not write them as one JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rocmforge.text.output.grammar import Schema, embedded_schema, regex_in_lark
from rocmforge.text.tool_calls.base import CannotEnforce, literal

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment"}
)
_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFINITIONS = ("$defs", "definitions")
_OBJECT = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties", "strict"}
# `format` only annotates, unless a validator is told otherwise.
_STRING = _ANNOTATIONS | {"type", "enum", "const", "minLength", "maxLength", "pattern", "format"}


def parameter(schema: Schema, name: str) -> Schema:
    """Returns the schema of one parameter, with the definitions that it may refer to."""
    if isinstance(schema, bool):
        return {}
    properties = schema.get("properties")
    found = properties.get(name, {}) if isinstance(properties, Mapping) else {}
    if not isinstance(found, Mapping):
        return {}
    return {**{key: schema[key] for key in _DEFINITIONS if key in schema}, **found}


def is_text(schema: Schema) -> bool:
    """Returns whether a parameter is a string and nothing else, so that it is written as it is."""
    if not isinstance(schema, dict):
        return False
    found = _resolved(schema)
    if "type" in found:
        return bool(found["type"] == "string")
    values = found.get("enum", [found["const"]] if "const" in found else [])
    return isinstance(values, list) and bool(values) and all(isinstance(v, str) for v in values)


def is_native(schema: Schema) -> bool:
    """Returns whether a value is a string, or of lists and objects whose every part is listed.

    A format that has its own way to write these can do so. Others are written as JSON.
    """
    if is_text(schema):
        return True
    if not isinstance(schema, dict) or "$ref" in schema:
        return False
    keys = schema.keys() - _ANNOTATIONS
    match schema.get("type"):
        case "array":
            return keys == {"type", "items"} and is_native(schema["items"])
        case "object":
            parts, required = schema.get("properties") or {}, {*schema.get("required", ())}
            return (
                keys <= {"type", "properties", "required", "additionalProperties"}
                and not schema.get("additionalProperties")
                and len(parts) > 0
                and required <= parts.keys()
                and all(_BARE_KEY.fullmatch(name) for name in parts)
                and all(is_native(part) for part in parts.values())
            )
        case kind:
            return kind in ("integer", "number", "boolean", "null")


def _resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolves a reference to a definition."""
    for key in _DEFINITIONS:
        place = str(schema.get("$ref", "")).removeprefix(f"#/{key}/")
        found = schema.get(key, {}).get(place)
        if isinstance(found, Mapping):
            return found
    return schema


def ordered(function: str, schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Returns name, schema and whether it is required, of each parameter.

    Raises:
        CannotEnforce: the schema says more than that.
    """
    if isinstance(schema, bool):
        schema = {}
    for key in schema:
        if key not in _OBJECT and key not in _DEFINITIONS:
            raise CannotEnforce(function, f"'{key}' is not possible in this model's call format")
    required = schema.get("required", [])
    names = list(schema.get("properties", {}))
    for name in required:
        if name not in names:
            raise CannotEnforce(function, f"'required' names {name!r}, which has no schema")
    return [(name, parameter(schema, name), name in required) for name in names]


def takes_others(schema: Schema) -> bool:
    """Returns whether there may be parameters that the schema does not name."""
    if isinstance(schema, bool):
        return schema
    return schema.get("additionalProperties", "properties" not in schema) is not False


def text_terminal(
    function: str, schema: Schema, end: str, name: str, *, takes_end: bool = True
) -> str:
    """Writes a terminal of that name: a string as it is, up to the text that ends it.

    Args:
        function: The function that has the parameter.
        schema: The string's.
        end: What ends it, and cannot be in it.
        name: Of the terminal.
        takes_end: Whether the end is a part of the terminal.

    Raises:
        CannotEnforce: a keyword, or a value that holds the end.
    """
    assert not isinstance(schema, bool), "true is not a string"
    string = _resolved(schema)
    for key in string:
        if key not in _STRING and key not in _DEFINITIONS:
            raise CannotEnforce(
                function, f"'{key}' of a string is not possible in this model's call format"
            )
    tag = end.strip()
    if "const" in string or "enum" in string:
        values = string.get("enum", [string.get("const")])
        if any(not isinstance(value, str) or tag in value for value in values):
            raise CannotEnforce(function, f"a value is not a string, or has {tag!r} in it")
        texts = [value + end if takes_end else value for value in values]
        return f"{name}: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    least, most = string.get("minLength", 0), string.get("maxLength", "")
    parts = [f"/(?s:.{{{least},{most}}})/", f"~/(?s:.*){_escaped(tag)}(?s:.*)/"]
    if "pattern" in string:
        parts.append(f"/{_anywhere(str(string['pattern']))}/")
    # One terminal: as two, the first would take in the beginning of the second.
    text = f"{name}_TEXT: {' & '.join(parts)}"
    return f"{text}\n{name}: {name}_TEXT {literal(end) if takes_end else ''}"


def json_rule(schema: Schema) -> str:
    """Writes the right side of a rule: a value as JSON."""
    return f"%json {json.dumps(embedded_schema(schema))}"


def _anywhere(pattern: str) -> str:
    """Extends a JSON schema's pattern, which matches anywhere in a string, to all of it."""
    before = "" if pattern.startswith("^") else "(?s:.*)"
    after = "" if pattern.endswith("$") else "(?s:.*)"
    inner = pattern.removeprefix("^").removesuffix("$")
    return regex_in_lark(f"{before}(?:{inner}){after}")


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if not c.isalnum() and c not in '<> "_' else c for c in text)
