"""Says in plain words which values a type takes, for messages about one that does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Final

from msgspec import inspect

_FEW: Final = 8  # names that are listed where none is like the one typed
_ALIKE: Final = 0.6  # of 1, as difflib counts it
_AS_LIKE: Final = 0.04


def expected(kind: Any) -> str:
    """Returns what a value of that type is, such as "a whole number from 0 to 65535".

    Args:
        kind: a type as fields of `msgspec.Struct` have it, with its bounds.
    """
    return _words(inspect.type_info(kind))


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(extra_json_schema={"examples": [*examples]}):
            return f"text such as {' or '.join(examples)}"
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
        return f" from {info.ge:.15g} to {info.le:.15g}"
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


def did_you_mean(typed: str, known: Iterable[str], prefix: str = "") -> str:
    """Asks after the names that are most like what was typed; see `nearest`.

    Without such names it lists all, if they are few; otherwise it returns nothing.
    """
    names = sorted(known)
    found = nearest(typed, names, prefix)
    if found:
        return f"Did you mean {' or '.join(found)}?"
    return f"Known: {', '.join(names)}." if len(names) <= _FEW else ""


def nearest(typed: str, known: Iterable[str], prefix: str = "") -> tuple[str, ...]:
    """Returns the name that is most like what was typed, or two that are nearly as like it.

    Args:
        typed: a name that is not known.
        known: the names.
        prefix: what all begin with, such as `--`, which makes no two of them alike.
    """
    names = {name.removeprefix(prefix): name for name in sorted(known)}
    rest = typed.removeprefix(prefix)
    found = get_close_matches(rest, names, n=2, cutoff=_ALIKE)
    if not found:
        return ()
    bound = SequenceMatcher(None, found[0], rest).ratio() - _AS_LIKE
    alike = [each for each in found if SequenceMatcher(None, each, rest).ratio() >= bound]
    return tuple(names[each] for each in alike)
