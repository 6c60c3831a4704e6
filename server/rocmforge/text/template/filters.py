"""The filters that chat templates may use, each checked against the rendering's budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context, Undefined
from jinja2.utils import _PassArg, pass_context

from rocmforge.text.template.bounded import BoundedEnvironment
from rocmforge.text.template.budget import LimitReached
from rocmforge.text.template.tracked import TrackedMarkup, escaped, joined, trust_of

Filter = Callable[..., Any]

# Filters that write their input out as text.
_TEXT = (
    *("capitalize", "center", "format", "indent", "lower", "replace", "string", "title", "trim"),
    *("truncate", "upper", "urlencode"),
)

# Filters that neither do that nor look into what their input holds.
_SHALLOW = (
    *("abs", "count", "d", "default", "first", "float", "int", "items", "last", "length", "list"),
    *("map", "reject", "rejectattr", "reverse", "round", "select", "selectattr"),
)

# Filters that compare, hash, add or nest what their input holds.
_DEEP = ("batch", "dictsort", "groupby", "max", "min", "slice", "sort", "sum", "unique")

# Of those on sequences, the ones for which a string is a long sequence.
_COUNTED = frozenset(_DEEP) | {"list", "map", "reject", "reverse", "select"}

_LONGEST_NUMERAL = 10_000


_GIVEN: Mapping[_PassArg | None, Callable[[Context], tuple[Any, ...]]] = {
    None: lambda context: (),
    _PassArg.context: lambda context: (context,),
    _PassArg.eval_context: lambda context: (context.eval_ctx,),
    _PassArg.environment: lambda context: (context.environment,),
}
"""What filters of Jinja's take before their value."""


def _checked(name: str) -> Filter:
    """Wraps a filter of Jinja's: checks its arguments before and its result after."""
    function = JINJA_FILTERS[name]
    given = _GIVEN[_PassArg.from_obj(function)]
    is_deep, writes, counts = name in _DEEP, name in _TEXT, name in _COUNTED
    check = _SPECIFIC.get(name)

    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        environment: BoundedEnvironment = context.environment  # type: ignore[assignment]
        budget = environment.budget
        budget.tick()
        for arg in (*args, *kwargs.values()):
            budget.width(arg)
        if is_deep:
            budget.size((value, args, kwargs))
        elif writes:
            environment.text_of(value)
        if counts and isinstance(value, str):
            budget.items(len(value))
        if check is not None:
            check(environment, value, args, kwargs)
        result = function(*given(context), value, *args, **kwargs)
        if isinstance(result, str):
            budget.text(len(result))
        elif isinstance(result, list):
            budget.items(len(result))
        elif isinstance(result, Iterator):
            return budget.listed(result)
        return result

    return pass_context(run)


def _check_number(_environment: BoundedEnvironment, value: Any, _args: Any, _kwargs: Any) -> None:
    if isinstance(value, str) and len(value) > _LONGEST_NUMERAL:
        raise LimitReached(f"it read a number of more than {_LONGEST_NUMERAL} digits")


def _check_replace(environment: BoundedEnvironment, value: Any, args: Any, _kwargs: Any) -> None:
    if len(args) >= 2:
        old, new = environment.text_of(args[0]), environment.text_of(args[1])
        environment.budget.replace(environment.text_of(value), old, new)


def _check_indent(environment: BoundedEnvironment, value: Any, args: Any, kwargs: Any) -> None:
    width = args[0] if args else kwargs.get("width", 4)
    columns = len(width) if isinstance(width, str) else int(width)
    text = environment.text_of(value)
    environment.budget.text(len(text) + (len(str.splitlines(text)) + 1) * columns)


def _check_format(environment: BoundedEnvironment, value: Any, args: Any, kwargs: Any) -> None:
    environment.budget.percent_format(environment.text_of(value), kwargs or args)


def _check_sum(_environment: BoundedEnvironment, _value: Any, args: Any, kwargs: Any) -> None:
    # Adding up lists takes time with the square of their number.
    start = args[1] if len(args) > 1 else kwargs.get("start", 0)
    if not isinstance(start, int | float):
        raise LimitReached("it adds up what are not numbers")


def _check_words(environment: BoundedEnvironment, value: Any, _args: Any, _kwargs: Any) -> None:
    # These work in Python, character by character or word by word.
    environment.budget.items(len(environment.text_of(value)))


_SPECIFIC: Mapping[str, Callable[[BoundedEnvironment, Any, Any, Any], None]] = {
    "float": _check_number,
    "format": _check_format,
    "indent": _check_indent,
    "int": _check_number,
    "replace": _check_replace,
    "sum": _check_sum,
    "title": _check_words,
    "urlencode": _check_words,
}


@pass_context
def _each(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    environment: BoundedEnvironment = context.environment  # type: ignore[assignment]
    return environment.budget.each(items)


@pass_context
def _join(
    context: Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    environment: BoundedEnvironment = context.environment  # type: ignore[assignment]
    items = environment.budget.listed(value)
    if attribute is not None:
        items = [make_attrgetter(environment, attribute)(item) for item in items]
    return environment.joined([environment.text_of(item) for item in items], d)


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes JSON as Transformers does: without HTML escapes."""
    environment: BoundedEnvironment = context.environment  # type: ignore[assignment]
    budget = environment.budget
    budget.tick()
    budget.size(value)
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    budget.width(indent)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        return encoder.encode(value)
    chunks = []
    for chunk in budget.each(encoder.iterencode(value)):
        budget.text(len(chunk))
        chunks.append(chunk)
    return joined(chunks)


@pass_context
def _safe(context: Context, value: Any) -> TrackedMarkup:
    environment: BoundedEnvironment = context.environment  # type: ignore[assignment]
    text = environment.text_of(value)
    return TrackedMarkup(text, trust_of(text))


@pass_context
def _escape(context: Context, value: Any) -> TrackedMarkup:
    environment: BoundedEnvironment = context.environment  # type: ignore[assignment]
    text = environment.text_of(value)
    environment.budget.text(6 * len(text))
    text = escaped(text)
    return TrackedMarkup(text, trust_of(text))


FILTERS: Mapping[str, Filter] = {
    **{name: _checked(name) for name in (*_TEXT, *_SHALLOW, *_DEEP)},
    "#each": _each,
    "e": _escape,
    "escape": _escape,
    "join": _join,
    "safe": _safe,
    "tojson": _tojson,
}
