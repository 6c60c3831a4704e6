"""The budget of one rendering of a chat template.

A template comes with a model file, and so from strangers; what it renders comes from clients. A
thread that runs away cannot be stopped, so every operation is bounded where it happens: each loop
iteration, call, filter and operator looks at the clock, each operation whose result can be larger
than its operands is checked before it runs, and no value, however nested, exceeds the limits, so
that every single operation ends soon.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from jinja2.utils import Namespace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits.

    Attributes:
        seconds: Time.
        chars: Length of the prompt, and of any string on the way to it.
        work_chars: Length of all strings made on the way, together.
        items: Length of any list.
        nodes: Number of values inside any nested value.
        width: Padding, indentation and other numbers given to filters and methods.
        bits: Size of integers.
    """

    seconds: float = 5.0
    chars: int = 8_000_000
    work_chars: int = 64_000_000
    items: int = 200_000
    nodes: int = 500_000
    width: int = 10_000
    bits: int = 65_536


class LimitReached(Exception):
    """A rendering has used up its budget. The message says which part of it."""


# Everything `%` may be followed by, but for widths taken from arguments.
_PERCENT = re.compile(r"%(?:\([^()]*\))?[-+ #0]*(?P<width>\d*)(?:\.(?P<precision>\d*))?[a-zA-Z%]")
_DIGITS = re.compile(r"\d+")


def values_of(namespace: Namespace) -> dict[str, Any]:
    """Returns the values of a namespace by name."""
    values: dict[str, Any] = object.__getattribute__(namespace, "_Namespace__attrs")
    return values


class Budget:
    """One rendering's budget. Mutable; owned by the rendering."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        """Start the clock (seconds, monotonic)."""
        self.limits = limits
        self._clock = clock
        self._deadline = clock() + limits.seconds
        self._work = 0

    def tick(self) -> None:
        """Look at the clock."""
        if self._clock() > self._deadline:
            raise LimitReached(f"it took more than {self.limits.seconds:g} seconds")

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items of a loop."""
        clock, deadline = self._clock, self._deadline
        for item in items:
            if clock() > deadline:
                self.tick()
            yield item

    def listed(self, items: Iterable[T]) -> list[T]:
        """Lists items that may come from a generator."""
        made: list[T] = []
        for item in self.each(items):
            made.append(item)
            self.items(len(made))
        return made

    def text(self, length: int) -> None:
        """Checks the length of a string that is about to be made, and charges for it."""
        self._work += length
        if length > self.limits.chars or self._work > self.limits.work_chars:
            raise LimitReached(f"its text grew beyond {self.limits.chars} characters")

    def items(self, count: int) -> None:
        """Check the length of a list that is about to be made."""
        if count > self.limits.items:
            raise LimitReached(f"it made a list of more than {self.limits.items} items")

    def width(self, value: object) -> None:
        """Check a number given as a width, a count or a precision."""
        if isinstance(value, int) and abs(value) > self.limits.width:
            raise LimitReached(f"it used {value} as a width; the limit is {self.limits.width}")

    def size(self, value: object) -> int:
        """Returns about how many characters a value has when it is written out.

        Counts everything inside it as often as it occurs: references may be shared, so that a
        short template can build a value that is larger than memory once it is written out.
        """
        nodes = length = 0
        pending: list[object] = [value]
        while pending:
            item = pending.pop()
            nodes += 1
            if isinstance(item, str):
                length += len(item)
            elif isinstance(item, Mapping):
                pending.extend(item.keys())
                pending.extend(item.values())
            elif isinstance(item, list | tuple):
                pending.extend(item)
            elif isinstance(item, Namespace):
                pending.append(values_of(item))
            if nodes + len(pending) > self.limits.nodes:
                raise LimitReached("it built a value that is too large")
            if length > self.limits.chars:
                self.text(length)
        return length + 8 * nodes

    def operator(self, operator: str, left: object, right: object) -> None:
        """Check `left operator right` before it is computed."""
        if operator == "+":
            self._sum(left, right)
        elif operator == "*":
            self._product(left, right)
            self._product(right, left)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._bits(left.bit_length() * max(right, 0))
        elif operator == "%" and isinstance(left, str):
            self.percent_format(left, right)

    def percent_format(self, template: str, values: object) -> None:
        """Check `template % values`."""
        rest = _PERCENT.sub("", template)
        if "%" in rest:
            raise LimitReached("it formats with a width taken from a value, or malformed")
        fields = 0
        for match in _PERCENT.finditer(template):
            fields += 1
            self.width(int(match["width"] or 0))
            self.width(int(match["precision"] or 0))
        self.text(len(template) + fields * (self.size(values) + self.limits.width))

    def brace_format(self, template: str, values: object) -> None:
        """Check `template.format(...)`."""
        fields = 0
        for _, name, spec, _ in string.Formatter().parse(template):
            fields += name is not None
            if spec and "{" in spec:
                raise LimitReached("it formats with a width taken from a value")
            for digits in _DIGITS.findall(spec or ""):
                self.width(int(digits[:9]))
        self.text(len(template) + fields * self.size(values))

    def str_method(self, text: str, name: str, args: tuple[Any, ...]) -> None:
        """Check `text.name(*args)`."""
        for arg in args:
            self.width(arg)
        if name == "replace" and len(args) >= 2:
            self.replace(text, args[0], args[1])
        elif name == "expandtabs":
            self.text(len(text) + str.count(text, "\t") * self.limits.width)
        elif name in ("split", "rsplit"):
            separator = args[0] if args else None
            pieces = str.count(text, separator) if separator else len(str.split(text))
            self.items(pieces)
        elif name == "splitlines":
            self.items(len(str.splitlines(text)))
        else:
            self.text(len(text))

    def replace(self, text: str, old: str, new: str) -> None:
        """Check `text.replace(old, new)`."""
        self.text(len(text) + str.count(text, old) * len(new))

    def _sum(self, left: object, right: object) -> None:
        if isinstance(left, str) and isinstance(right, str):
            self.text(len(left) + len(right))
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            self.items(len(left) + len(right))
        elif isinstance(left, int) and isinstance(right, int):
            self._bits(max(left.bit_length(), right.bit_length()))

    def _product(self, left: object, right: object) -> None:
        if not isinstance(right, int):
            return
        if isinstance(left, str):
            self.text(len(left) * max(right, 0))
        elif isinstance(left, list | tuple):
            self.items(len(left) * max(right, 0))
        elif isinstance(left, int):
            self._bits(left.bit_length() + right.bit_length())

    def _bits(self, bits: int) -> None:
        if bits > self.limits.bits:
            raise LimitReached(f"it computed a number of more than {self.limits.bits} bits")
