"""Strings that know which of their characters the chat template wrote.

Special tokens are markup when the template writes them and plain text when they come from a
client. In the rendered prompt both look the same, so the difference has to travel with the
characters while the template cuts, strips and joins them. `TrackedText` is a `str` with one trust
flag per character. An operation it does not follow gives a plain `str`, which nobody trusts: losing
track costs a special token, never lets one in.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, SupportsIndex

_TRUSTED = b"\1"
_UNTRUSTED = b"\0"


class TrackedText(str):
    """A string with a flag per character: 1 where the template (or its author) wrote it."""

    __slots__ = ("_trust",)
    _trust: bytes

    def __new__(cls, text: str, trust: bytes) -> Self:
        """Attaches flags to text of the same length."""
        assert len(text) == len(trust)
        tracked = str.__new__(cls, text)
        tracked._trust = trust
        return tracked

    @classmethod
    def trusted(cls, text: str) -> Self:
        """Makes text that the template wrote."""
        return cls(text, _TRUSTED * len(text))

    def __str__(self) -> TrackedText:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> Self:
        text = str.__getitem__(self, key)
        if isinstance(key, slice):
            return type(self)(text, self._trust[key])
        return type(self)(text, bytes([self._trust[key]]))

    def __iter__(self) -> Iterator[Self]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: str) -> TrackedText:
        if type(other) is TrackedText:
            return TrackedText(str.__add__(self, other), self._trust + other._trust)
        if not isinstance(other, str) or isinstance(other, TrackedMarkup):
            return NotImplemented
        return TrackedText(str.__add__(self, other), self._trust + trust_of(other))

    def __radd__(self, other: str) -> TrackedText:
        if not isinstance(other, str):
            return NotImplemented
        return TrackedText(str.__add__(other, self), trust_of(other) + self._trust)

    def __mul__(self, count: SupportsIndex) -> Self:
        return type(self)(str.__mul__(self, count), self._trust * count)

    __rmul__ = __mul__

    def strip(self, chars: str | None = None, /) -> Self:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> Self:
        cut = len(self) - len(str.lstrip(self, chars))
        return self[cut:] if cut else self

    def rstrip(self, chars: str | None = None, /) -> Self:
        kept = len(str.rstrip(self, chars))
        return self[:kept] if kept < len(self) else self

    def removeprefix(self, prefix: str, /) -> Self:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> Self:
        return self[: len(self) - len(suffix)] if self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._locate(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._locate(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines: list[str] = []
        position = 0
        for line in str.splitlines(self, keepends=True):
            shown = line if keepends else str.splitlines(line)[0]
            lines.append(self[position : position + len(shown)])
            position += len(line)
        return lines

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        return self._around(sep, str.find(self, sep), len(self))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        return self._around(sep, str.rfind(self, sep), 0)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return str.replace(self, old, new, count)
        return joined(self.split(old, count), new)

    def join(self, items: Iterable[str], /) -> str:
        return joined(items, self)

    def upper(self) -> str:
        return self._recased(str.upper(self))

    def lower(self) -> str:
        return self._recased(str.lower(self))

    def casefold(self) -> str:
        return self._recased(str.casefold(self))

    def title(self) -> str:
        return self._recased(str.title(self))

    def capitalize(self) -> str:
        return self._recased(str.capitalize(self))

    def swapcase(self) -> str:
        return self._recased(str.swapcase(self))

    def _recased(self, text: str) -> str:
        # Changing case can lengthen a text, never shorten it, so equal length means one for one.
        return type(self)(text, self._trust) if len(text) == len(self) else text

    def _locate(self, pieces: Sequence[str], sep: str | None) -> list[str]:
        """Returns these pieces of the text, given in order, with their flags."""
        located: list[str] = []
        position = 0
        for piece in pieces:
            if sep is None:  # only white space lies between, and no piece begins with it
                position = str.find(self, piece, position)
            located.append(self[position : position + len(piece)])
            position += len(piece) + (0 if sep is None else len(sep))
        return located

    def _around(self, sep: str, start: int, missing: int) -> tuple[str, str, str]:
        if start < 0:
            return (self[:missing], self[:0], self[missing:])
        end = start + len(sep)
        return (self[:start], self[start:end], self[end:])


class TrackedMarkup(TrackedText):
    """The result of the filter `safe`: text that escapes HTML in whatever it is joined with.

    Chat templates are not HTML, but some use `safe`, and Jinja then escapes.
    """

    __slots__ = ()

    def __str__(self) -> TrackedText:
        return TrackedText(str.__str__(self), self._trust)

    def __html__(self) -> TrackedText:
        return str(self)  # type: ignore[return-value]

    def __add__(self, other: str) -> TrackedText:
        return _markup(joined([self, escaped(other)])) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> TrackedText:
        return _markup(joined([escaped(other), self])) if isinstance(other, str) else NotImplemented

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        return _markup(super().replace(old, escaped(new), count))

    def join(self, items: Iterable[str], /) -> str:
        return _markup(joined([escaped(item) for item in items], self))


def _markup(text: str) -> TrackedMarkup:
    return TrackedMarkup(text, trust_of(text))


def escaped(text: str) -> str:
    """Escapes the characters that mean something in HTML."""
    if isinstance(text, TrackedMarkup):
        return text
    for character, entity in _ENTITIES:
        text = text.replace(character, entity)
    return text


_ENTITIES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ('"', "&#34;"))


def trust_of(text: str) -> bytes:
    """Returns the flags of any string, a byte for each character; a plain one is not trusted."""
    return text._trust if isinstance(text, TrackedText) else _UNTRUSTED * len(text)


def joined(items: Iterable[str], between: str = "") -> str:
    """Returns `between.join(items)`, with flags."""
    parts = list(items)
    text = str.join(between, parts)
    if type(between) is str and all(type(part) is str for part in parts):
        return text
    return TrackedText(text, trust_of(between).join([trust_of(part) for part in parts]))


def formatted(template: TrackedText, field: Callable[[str], Any]) -> str | None:
    """Returns `template.format(...)` with flags; None where they cannot be followed.

    Args:
        template: The format string.
        field: Looks up a replacement field by its expression, `0` or `name.attribute`.
    """
    if _UNTRUSTED in template._trust:
        return None
    parts: list[str] = []
    automatic = 0
    for literal, name, spec, conversion in string.Formatter().parse(template):
        parts.append(TrackedText.trusted(literal))
        if name is None:
            continue
        if spec or conversion:
            return None
        if not name or name[0] in ".[":
            name, automatic = f"{automatic}{name}", automatic + 1
        value = field(name)
        parts.append(value if isinstance(value, str) else format(value))
    return joined(parts)
