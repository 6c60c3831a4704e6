"""Objects of a schema get no fields that it does not name, unless it says that they may."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llguidance
import pytest
from llguidance import LLMatcher

from rocmforge.text.output.closed_schema import close_objects
from rocmforge.text.output.grammar import find_problem, json_schema_grammar

ANIMAL: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["kind", "age"],
}
MORE = {"kind": "cat", "age": 3, "breed": "none"}
EXACT = {"kind": "cat", "age": 3}


def takes(schema: dict[str, Any], value: Any) -> bool:
    """Whether the grammar of a schema takes a value as it is written here."""
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, json_schema_grammar(schema))
    text = json.dumps(value).encode()
    return matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()


def test_an_object_has_the_named_fields_and_no_others() -> None:
    assert takes(ANIMAL, EXACT)
    assert not takes(ANIMAL, MORE)


@pytest.mark.parametrize("also", [True, {"type": "string"}])
def test_a_schema_can_say_that_there_may_be_others(also: Any) -> None:
    assert takes(ANIMAL | {"additionalProperties": also}, MORE)


def test_an_object_without_named_fields_is_any_object() -> None:
    assert takes({"type": "object"}, MORE)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": ANIMAL},
        {"type": "array", "items": {"$ref": "#/$defs/animal"}, "$defs": {"animal": ANIMAL}},
        {"type": "array", "items": {"anyOf": [ANIMAL, {"type": "null"}]}},
        {"type": "array", "items": {"allOf": [ANIMAL]}},
        {"type": "array", "items": {"description": "x", "allOf": [{"$ref": "#/$defs/a~1b"}]}}
        | {"$defs": {"a/b": ANIMAL}},
        {"type": "array", "prefixItems": [ANIMAL], "items": False},
    ],
    ids=["items", "ref", "optional", "one allOf", "ref in allOf", "prefix"],
)
def test_objects_inside_are_closed_as_well(schema: dict[str, Any]) -> None:
    assert takes(schema, [EXACT])
    assert not takes(schema, [MORE])


def branch(kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"const": kind}, **fields},
        "required": ["kind", *fields],
    }


def test_the_branches_of_a_discriminated_union_are_closed() -> None:
    union = {"oneOf": [branch("cat", lives={"type": "integer"}), branch("dog")]}
    assert takes(union, {"kind": "cat", "lives": 9})
    assert not takes(union, {"kind": "dog", "lives": 9})


def test_branches_that_only_further_fields_tell_apart_stay_open() -> None:
    """Closed, {"a": 1} would fit the first alone; as the schema says, it fits both."""
    branches = [
        {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
        for name in ("a", "b")
    ]
    assert close_objects({"oneOf": branches}) == {"oneOf": branches}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [ANIMAL, {"properties": {"breed": {"type": "string"}}, "required": ["breed"]}]},
        {
            "allOf": [
                {"$ref": "#/$defs/animal"},
                {"properties": {"breed": {"type": "string"}}, "required": ["breed"]},
            ],
            "$defs": {"animal": ANIMAL},
        },
        ANIMAL | {"anyOf": [{"required": ["breed"]}, {"required": ["name"]}]},
        ANIMAL | {"required": ["kind", "age", "breed"]},
        ANIMAL | {"minProperties": 3},
    ],
    ids=["allOf", "base class", "anyOf", "required", "minProperties"],
)
def test_objects_that_other_keywords_speak_of_stay_open(schema: dict[str, Any]) -> None:
    assert takes(schema, MORE)


def test_a_definition_that_an_allof_extends_stays_open_for_it_alone() -> None:
    schema = {
        "type": "array",
        "prefixItems": [
            {"$ref": "#/$defs/owner"},
            {
                "allOf": [
                    {"$ref": "#/$defs/animal"},
                    {"properties": {"breed": {"type": "string"}}, "required": ["breed"]},
                ]
            },
        ],
        "items": False,
        "$defs": {
            "animal": ANIMAL,
            "owner": {"type": "object", "properties": {"name": {"type": "string"}}},
        },
    }
    assert takes(schema, [{"name": "Ann"}, MORE])
    assert not takes(schema, [{"name": "Ann", "age": 3}, MORE])


def test_a_schema_that_refers_to_itself_is_closed() -> None:
    tree = {
        "type": "object",
        "properties": {"left": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["left"],
    }
    assert takes(tree, {"left": {"left": None}})
    assert not takes(tree, {"left": {"left": None, "right": None}})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}, "required": 5},
        {"properties": {"a": {}}, "minProperties": "x"},
        {"properties": 5},
        {"oneOf": 5},
        {"oneOf": [{"required": ["a"], "properties": 5}]},
        {"allOf": 5},
        {"$ref": "#/$defs/none"},
        {"$ref": "elsewhere.json"},
        {"$ref": "#anchor"},
    ],
    ids=str,
)
def test_what_is_no_schema_is_left_to_the_grammar_library(schema: dict[str, Any]) -> None:
    assert close_objects(schema) == schema


def test_the_given_schema_is_not_changed() -> None:
    before = json.dumps(ANIMAL)
    close_objects(ANIMAL)
    assert json.dumps(ANIMAL) == before


def official_schemas() -> Iterator[Any]:
    for file in sorted(Path(os.environ["ROCMFORGE_TEST_SCHEMA_SUITE"]).glob("*.json")):
        for group in json.loads(file.read_text()):
            if isinstance(group["schema"], dict):
                yield group["schema"]


@pytest.mark.skipif(
    "ROCMFORGE_TEST_SCHEMA_SUITE" not in os.environ,
    reason="set ROCMFORGE_TEST_SCHEMA_SUITE to json/tests/draft2020-12 of jsonschema's sdist",
)
def test_closing_makes_no_official_schema_unsatisfiable() -> None:
    opened = LLMatcher.grammar_from_json_schema
    closed_ones = [s for s in official_schemas() if close_objects(s) != s]
    assert len(closed_ones) > 20
    for schema in closed_ones:
        if not find_problem(opened(schema, overrides={"lenient": False})):
            assert find_problem(json_schema_grammar(schema)) == "", schema
