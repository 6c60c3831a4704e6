"""The making of text in compiled templates, bounded by the rendering's budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from rocmforge.text.template.budget import Budget
from rocmforge.text.template.tracked import TrackedText, joined


class Literals(dict[str, TrackedText]):
    """The texts of a template itself, each made when it is first asked for."""

    def __missing__(self, text: str) -> TrackedText:
        literal = self[text] = TrackedText.trusted(text)
        return literal


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The calls of compiled templates and filters that make text and containers.

    Attributes:
        budget: The rendering's budget.
        literals: The template's own text.
    """

    budget: Budget
    literals: Literals

    def weighed(self, value: Any) -> Any:
        """Checks a list, tuple or dict that the template has written."""
        self.budget.size(value)
        return value

    def text_of(self, value: Any) -> str:
        """Converts any value to text."""
        if isinstance(value, str):
            return value
        self.budget.size(value)
        return str(value)

    def concatenated(self, values: Iterable[Any]) -> str:
        """Applies the operator `~`."""
        self.budget.tick()
        return self.joined([self.text_of(value) for value in values], "")

    def joined(self, parts: list[str], between: str) -> str:
        """Returns `between.join(parts)`."""
        self.budget.text(sum(map(len, parts)) + len(between) * len(parts))
        return joined(parts, between)

    def concat(self, chunks: Iterable[str]) -> str:
        """Joins the output of a template, macro or block: plain strings are its literal text."""
        parts: list[str] = []
        length = 0
        for chunk in self.budget.each(chunks):
            length += len(chunk)
            if length > self.budget.limits.chars:
                self.budget.text(length)
            parts.append(self.literals[chunk] if type(chunk) is str else chunk)
        return self.joined(parts, "")
