"""The values that a field of a wire type takes, for messages about one that it does not take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"[^.\[\]]+|\[[^\]]*\]")


def allowed_values(kind: Any, path: str) -> list[Any]:
    """Returns the values of an enumeration somewhere within a type.

    Args:
        kind: the type of the whole body.
        path: the place as msgspec writes it, such as `messages[0].role` or `logit_bias[...]`.

    Returns:
        In alphabetical order; empty if any value of some type will do.
    """
    found = _values(inspect.type_info(kind), _STEP.findall(path))
    return list(dict.fromkeys(found))


def _values(info: inspect.Type, steps: Sequence[str]) -> Iterator[Any]:
    match info:
        case inspect.Metadata(type=inner):
            yield from _values(inner, steps)
        case inspect.UnionType(types=types):
            for one in types:
                yield from _values(one, steps)
        case inspect.LiteralType(values=values) if not steps:
            yield from values
        case inspect.ListType(item_type=inner) if steps and steps[0].startswith("["):
            yield from _values(inner, steps[1:])
        case inspect.DictType(value_type=inner) if steps and steps[0] == "[...]":
            yield from _values(inner, steps[1:])
        case inspect.StructType(tag_field=str(name), tag=tag) if steps == [name]:
            yield tag
        case inspect.StructType(fields=fields) if steps:
            for field in fields:
                if field.encode_name == steps[0]:
                    yield from _values(field.type, steps[1:])
