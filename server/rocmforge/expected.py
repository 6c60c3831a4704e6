"""Says in plain words which values a type takes, for messages about one that does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from msgspec import inspect


def expected(kind: Any) -> str:
    """Returns what a value of that type is, such as "a whole number from 0 to 65535".

    Args:
        kind: a type as fields of `msgspec.Struct` have it, with its bounds.
    """
    return _words(inspect.type_info(kind))


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(type=inner):
            return _words(inner)
        case inspect.UnionType(types=types):
            return " or ".join(_words(t) for t in types if not isinstance(t, inspect.NoneType))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _range(info)
        case inspect.FloatType():
            return "a number" + _range(info)
        case inspect.StrType(pattern=str(pattern)):
            return f"text that matches {pattern}"
        case inspect.StrType(min_length=int(length)) if length > 1:
            return f"text of at least {length} characters"
        case inspect.StrType(min_length=1):
            return "text that is not empty"
        case inspect.StrType():
            return "text"
        case inspect.VarTupleType(item_type=item):
            return f"a list, each entry {_words(item)}"
        case _:
            return "a table"


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:g} to {info.le:g}"
    bounds = [
        f"{word} {bound:.15g}"
        for word, bound in (
            ("at least", info.ge),
            ("above", info.gt),
            ("at most", info.le),
            ("below", info.lt),
        )
        if bound is not None
    ]
    return f", {' and '.join(bounds)}" if bounds else ""


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """Asks after the name that is most like what was typed, or lists all if none is."""
    names = sorted(known)
    found = nearest(typed, names)
    return f"Did you mean {found}?" if found else f"Known: {', '.join(names)}."


def nearest(typed: str, known: Iterable[str]) -> str | None:
    """Returns the name that is most like what was typed; None if none is much like it."""
    found = get_close_matches(typed, sorted(known), n=1, cutoff=0.7)
    return found[0] if found else None
