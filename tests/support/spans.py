"""Prompts with rows of embeddings, as tests make them up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rocmforge.backend.protocol import Float32Array
from rocmforge.engine.ipc.prompt import EmbeddingSpan, Prompt, TokenSpan, embedding_span
from tests.support.fake_backend import HIDDEN_SIZE

PLACEHOLDER = 2


def image(number: int, count: int, placeholder: int = PLACEHOLDER) -> EmbeddingSpan:
    """`count` rows that no other number or count has, as wide as the fake backend's."""
    rows = np.random.default_rng((number, count)).standard_normal((count, HIDDEN_SIZE))
    return embedding_span(rows.astype(np.float32), placeholder)


def prompt_of(*parts: EmbeddingSpan | TokenSpan | Sequence[int]) -> Prompt:
    """A prompt of spans and of token ids."""
    return Prompt(
        spans=tuple(
            part if isinstance(part, EmbeddingSpan | TokenSpan) else TokenSpan(ids=tuple(part))
            for part in parts
        )
    )


def embedded(
    ids: Sequence[int], table: Float32Array, places: Sequence[range], placeholder: int = PLACEHOLDER
) -> Prompt:
    """A prompt that says the same as these tokens, but in rows of the table at some places.

    Args:
        ids: of the tokens.
        table: what a decoder begins with for each token, [V, hidden_size].
        places: positions of the spans of embeddings, in order.
        placeholder: the id that stands there.
    """
    parts: list[EmbeddingSpan | Sequence[int]] = []
    start = 0
    for place in places:
        parts += [ids[start : place.start]] if place.start > start else []
        rows = table[list(ids[place.start : place.stop])]
        parts.append(embedding_span(rows, placeholder))
        start = place.stop
    return prompt_of(*parts, *([ids[start:]] if start < len(ids) else []))
