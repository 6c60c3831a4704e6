"""Positions of a sequence on several axes, of models that tell the rows and columns of an image."""

from __future__ import annotations

import numpy as np

from rocmforge.backend.arrays import Int32Array
from rocmforge.engine.ipc.prompt import EmbeddingSpan, Prompt


class AxisPositions:
    """The positions that queries and keys rotate by: of time, row and column (Wang et al. 2024).

    They follow from the spans of a prompt alone. A token is one further on all axes than what is
    before it. An image is at one time, its rows and columns count from there, and what follows it
    is behind the longer of its sides. So generated tokens are a constant away from their index.

    Args:
        prompt: has at least one span with a grid.
    """

    def __init__(self, prompt: Prompt) -> None:
        parts, position = [], 0
        for span in prompt.spans:
            rows, columns = span.grid if isinstance(span, EmbeddingSpan) else (0, 0)
            if rows:
                row, column = np.divmod(np.arange(rows * columns, dtype=np.int32), columns)
                parts.append(np.stack([np.zeros_like(row), row, column], axis=1) + position)
                position += max(rows, columns)
            else:
                line = np.arange(position, position + len(span), dtype=np.int32)
                parts.append(np.repeat(line[:, None], 3, axis=1))
                position += len(span)
        self._prompt: Int32Array = np.concatenate(parts)
        self._behind = position

    def between(self, start: int, end: int) -> Int32Array:
        """Returns the positions of the tokens at indices `start..end`, [end - start, 3]."""
        num_prompt = len(self._prompt)
        later = np.arange(max(start, num_prompt), max(end, num_prompt), dtype=np.int32)
        later = np.repeat(later[:, None] + np.int32(self._behind - num_prompt), 3, axis=1)
        return np.concatenate([self._prompt[start:end], later])


def axis_positions(prompt: Prompt) -> AxisPositions | None:
    """Returns the positions of a sequence; None if they are the indices of its tokens."""
    return AxisPositions(prompt) if any(span.grid[0] for _, span in prompt.embeddings) else None
