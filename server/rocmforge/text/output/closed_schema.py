"""Closes the objects of a JSON schema, so that a model cannot add fields without end.

By JSON Schema an object may have fields that its schema does not name. That is a sensible rule for
checking what somebody else has written. A model that writes takes it as an invitation: it invents
fields until it runs out of tokens. So an object whose `properties` are listed gets no others,
unless the schema says `additionalProperties` itself. An answer that fits the closed schema also
fits the schema as it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

import msgspec

Node = dict[str, Any]

_ANNOTATIONS: Final = frozenset(
    (
        *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description"),
        *("default", "examples", "deprecated", "readOnly", "writeOnly", "x-guidance", "type"),
        *("discriminator", "strict"),
    )
)
_OF_OBJECTS: Final = frozenset(
    ("properties", "patternProperties", "required", "minProperties", "maxProperties")
)
# Keywords whose schemas describe a part of the value: each as one schema, a list, or by name.
_OF_PARTS: Final = ("items", "additionalProperties", "prefixItems")
_OF_NAMED_PARTS: Final = ("properties", "patternProperties")
# Keywords whose schemas speak of the same value, or where closing could allow more than before.
_OF_THE_SAME: Final = (
    *("not", "if", "then", "else", "contains", "propertyNames", "additionalItems"),
    *("unevaluatedItems", "unevaluatedProperties", "allOf", "anyOf", "oneOf"),
)
_BY_REFERENCE_ONLY: Final = ("$dynamicRef", "$recursiveRef")


class _CannotFollow(Exception):
    """A reference to something that is not a place in this schema."""


def close_objects(schema: Node) -> Node:
    """Returns a copy in which objects with `properties` have no others.

    An object stays open where its schema says so (`additionalProperties`), and where other keywords
    speak of the same object (`allOf`, `if`, ...), since these may name further fields.
    """
    root: Node = msgspec.json.decode(msgspec.json.encode(schema))
    try:
        for node in _closable(root):
            node["additionalProperties"] = False
    except (_CannotFollow, TypeError, AttributeError):  # the latter: it is no schema
        return schema
    return root


def _closable(root: Node) -> list[Node]:
    """Yields the objects that no keyword beside them speaks of, wherever they are referred to."""
    found: dict[int, tuple[Node, bool]] = {}
    waiting: list[tuple[Any, bool]] = [(root, True)]
    while waiting:
        node, alone = waiting.pop()
        if not isinstance(node, dict):  # true or false
            continue
        if id(node) in found and (found[id(node)][1] is False or alone):
            continue
        if any(word in node for word in _BY_REFERENCE_ONLY) or ("$id" in node and node is not root):
            raise _CannotFollow
        found[id(node)] = (node, alone)
        others = list(_others(node, root))
        alone = alone and (not others or _is_alone(node, root))
        waiting += [(part, alone) for part in (*_parts(node), *others)]
    return [node for node, alone in found.values() if alone and _lists_all(node)]


def _parts(node: Node) -> Iterator[Any]:
    for word in _OF_PARTS:
        yield from _listed(node, word)
    for word in _OF_NAMED_PARTS:
        named = node.get(word)
        if isinstance(named, dict):
            yield from named.values()


def _listed(node: Node, word: str) -> list[Any]:
    """Returns the schemas of a keyword that has one or several."""
    if word not in node:
        return []
    return node[word] if isinstance(node[word], list) else [node[word]]


def _others(node: Node, root: Node) -> Iterator[Any]:
    """Returns the schemas that speak of the same value as `node`."""
    for word in _OF_THE_SAME:
        yield from _listed(node, word)
    dependent = node.get("dependentSchemas")
    if isinstance(dependent, dict):
        yield from dependent.values()
    if isinstance(node.get("$ref"), str):
        yield _target(node["$ref"], root)


def _is_alone(node: Node, root: Node) -> bool:
    """Returns whether the value has to fit only one schema in `node`, and nothing beside it."""
    (word, *more) = node.keys() - _ANNOTATIONS or ("",)
    if more:
        return False
    if word == "oneOf":
        return _are_disjoint([_resolved(branch, root) for branch in node[word]])
    return word in ("$ref", "anyOf") or (word == "allOf" and len(node[word]) == 1)


def _are_disjoint(branches: list[Any]) -> bool:
    """Returns whether a field tells all branches apart, as in a discriminated union."""
    if not all(isinstance(branch, dict) for branch in branches):
        return False
    required = [set(branch.get("required", ())) for branch in branches]
    for name in set.intersection(*required) if required else ():
        values = [_values(branch.get("properties", {}).get(name)) for branch in branches]
        if all(values) and len(set.union(*values)) == sum(map(len, values)):
            return True
    return False


def _values(schema: Any) -> set[str]:
    """Returns the texts that a schema lists, if it is nothing but a list of texts."""
    if not isinstance(schema, dict):
        return set()
    listed = schema.get("enum", [schema.get("const")])
    return set(listed) if all(isinstance(value, str) for value in listed) else set()


def _resolved(node: Any, root: Node) -> Any:
    if isinstance(node, dict) and isinstance(node.get("$ref"), str):
        return _target(node["$ref"], root)
    return node


def _target(reference: str, root: Node) -> Any:
    """Returns the schema at a place such as `#/$defs/name`."""
    if not reference.startswith("#"):
        raise _CannotFollow
    node: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(name)] if isinstance(node, list) else node[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise _CannotFollow from None
    if reference != "#" and node is root:
        raise _CannotFollow  # an anchor
    return node


def _lists_all(node: Node) -> bool:
    """Returns whether `properties` lists the fields that there may be."""
    properties = node.get("properties")
    return (
        isinstance(properties, dict)
        and node.keys() <= _ANNOTATIONS | _OF_OBJECTS
        and set(node.get("required", ())) <= properties.keys()
        and node.get("minProperties", 0) <= len(properties)
    )
