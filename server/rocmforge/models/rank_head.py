"""The classification head of a decoder that ranks, such as Qwen3-Reranker.

Its two rows are those of the output matrix for "yes" and "no"; a model that was trained with a head
of its own has one row. They are applied by the server, to the state of the last token that an
engine returns, so that backends know nothing of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rocmforge.errors import BadTemplate
from rocmforge.models.checkpoint import Checkpoint

_BLANKS = re.compile(r"(\{query\}|\{document\})")


@dataclass(frozen=True, slots=True, eq=False)
class RankHead:
    """The prompt of a decoder that ranks, and the matrix that scores its answer."""

    weight: npt.NDArray[np.float32]  # [2, hidden_size], of "yes" and of "no"; or [1, hidden_size]
    prompt: str  # with {query} and {document}

    @property
    def is_all(self) -> bool:
        """Whether the model has no other output matrix, and so writes no text."""
        return len(self.weight) == 1

    def fill(self, query: str, document: str) -> Iterator[tuple[str, bool]]:
        """Yields the prompt in pieces, and whether each is the file's own text."""
        texts = {"{query}": query, "{document}": document}
        for piece in _BLANKS.split(self.prompt):
            yield texts.get(piece, piece), piece not in texts

    def relevance(self, state: npt.NDArray[np.float32]) -> float:
        """Returns the probability of "yes" against "no"; the sigmoid of the score if there is one.

        Args:
            state: [hidden_size], the last token's hidden state.
        """
        yes, *no = self.weight @ state
        return float(np.exp(-np.logaddexp(0, sum(no) - yes)))


def read_rank_head(checkpoint: Checkpoint, prompt: str | None = None) -> RankHead | None:
    """Reads the head of a decoder; None without head or prompt.

    Args:
        checkpoint: The model.
        prompt: With {query} and {document}, for models without one named "rerank".

    Raises:
        BadTemplate: The model has a head instead of an output matrix, and there is no prompt.
    """
    tensor, prompt = (
        checkpoint.weights.get("head.scores"),
        checkpoint.chat_templates.get("rerank", prompt),
    )
    if tensor is None:
        return None
    if prompt:
        return RankHead(tensor.to_float32(), prompt)
    if tensor.shape[0] == 1:
        raise BadTemplate(
            "The model ranks, but has no prompt for it. Give it a chat template that knows the "
            "roles 'query' and 'document' with --chat-template."
        )
    return None
