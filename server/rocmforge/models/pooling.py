"""How hidden states become one result."""

from __future__ import annotations

from enum import IntEnum


class PoolingType(IntEnum):
    """The method, with the numbers of llama.cpp."""

    NONE = 0
    MEAN = 1
    CLS = 2  # the first token's
    LAST = 3  # the last token's
    RANK = 4  # a score, from a classification head
