"""Finding the spellings of special tokens in text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rocmforge.errors import BadTokenizer


class SpecialTokens:
    """Matches token spellings in text: leftmost first, the longest at each place.

    The spellings are compiled into one pattern shaped like their prefix tree, so that a
    vocabulary with thousands of special tokens costs no more per character than one with ten.
    """

    def __init__(self, spellings: Mapping[str, int]) -> None:
        """Compiles the spellings of tokens; raises BadTokenizer if they nest too deep."""
        self._ids = dict(spellings)
        try:
            self._pattern = re.compile(_tree_pattern(list(self._ids))) if self._ids else None
        except RecursionError as error:
            raise BadTokenizer(
                "Too many special tokens of the vocabulary begin with one another."
            ) from error

    def search(self, text: str, start: int) -> tuple[int, int, int] | None:
        """Returns the first match at or after `start`, as (start, end, token id)."""
        return self._result(self._pattern.search(text, start) if self._pattern else None)

    def match(self, text: str, start: int) -> tuple[int, int, int] | None:
        """Returns the match that begins exactly at `start`, as (start, end, token id)."""
        return self._result(self._pattern.match(text, start) if self._pattern else None)

    def _result(self, found: re.Match[str] | None) -> tuple[int, int, int] | None:
        return None if found is None else (found.start(), found.end(), self._ids[found.group()])


def _tree_pattern(spellings: list[str]) -> str:
    # Plain recursion would meet Python's recursion limit on long spellings; group by first
    # character and factor out the common prefix, so that depth counts branchings only.
    groups: dict[str, list[str]] = {}
    for spelling in spellings:
        groups.setdefault(spelling[0], []).append(spelling)
    branches = []
    for group in groups.values():
        prefix = _common_prefix(group)
        rests = [spelling[len(prefix) :] for spelling in group]
        longer = [rest for rest in rests if rest]
        pattern = re.escape(prefix)
        if longer:
            pattern += f"(?:{_tree_pattern(longer)})" + ("?" if len(longer) < len(rests) else "")
        branches.append(pattern)
    return "|".join(branches)


def _common_prefix(strings: list[str]) -> str:
    low, high = min(strings), max(strings)
    length = 0
    while length < len(low) and low[length] == high[length]:
        length += 1
    return low[:length]
