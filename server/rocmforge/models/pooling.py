"""The pooling that a GGUF file declares: how hidden states become one result."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from rocmforge.gguf.reader import GgufFile

SCORES: Final = "cls.output.weight"
"""The matrix [scores, hidden_size] of a classification head."""


class PoolingType(IntEnum):
    """`<architecture>.pooling_type`, as llama.cpp numbers it."""

    NONE = 0
    MEAN = 1
    CLS = 2  # the first token's
    LAST = 3  # the last token's
    RANK = 4  # a score, from a classification head


def declared_pooling(file: GgufFile) -> PoolingType:
    """Returns what the model was trained for; NONE if the file does not say, or it is unknown."""
    architecture = file.metadata.get("general.architecture")
    value = file.metadata.get(f"{architecture}.pooling_type")
    if isinstance(value, int) and value in {*PoolingType}:
        return PoolingType(value)
    return PoolingType.NONE
