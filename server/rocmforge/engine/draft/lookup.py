"""Draft tokens by prompt lookup (A. Saxena, 2023).

What followed the last few tokens when they stood together before may follow again. Answers that
quote their prompt, such as edits and summaries, are full of that.
"""

from __future__ import annotations

import numpy as np

from rocmforge.backend.arrays import Int32Array

_LONGEST, _SHORTEST = 4, 2


def look_up(tokens: Int32Array, count: int) -> Int32Array:
    """Finds up to `count` tokens that may follow; none if the last tokens stood nowhere before.

    The longest end of the sequence that occurs in it twice decides, and of its places the
    last one that is followed by enough tokens.

    Args:
        tokens: the whole sequence, [N]; negative, and no two alike, where it has no token.
        count: how many tokens are wanted.

    Returns:
        The draft tokens, [K], K <= count.
    """
    if count <= 0:
        return tokens[:0]
    for length in range(min(_LONGEST, len(tokens) - 1), _SHORTEST - 1, -1):
        places = _places(tokens, length)
        if len(places):
            full = places[places + count <= len(tokens)]
            start = int(full[-1] if len(full) else places[0])
            found = tokens[start : start + count]
            gaps = np.flatnonzero(found < 0)
            return found[: gaps[0]] if len(gaps) else found
    return tokens[:0]


def _places(tokens: Int32Array, length: int) -> Int32Array:
    """Returns where the tokens go on behind earlier copies of the last `length` ones, [M]."""
    end = len(tokens) - length
    matches = np.ones(end, np.bool_)
    for i in range(length):
        matches &= tokens[i : i + end] == tokens[end + i]
    places: Int32Array = np.flatnonzero(matches).astype(np.int32) + np.int32(length)
    return places
