"""The usage that chunks of a stream carry."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rocmforge.api.generate.generation import Piece
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.schema import StreamOptions, Usage


class StreamUsage:
    """The field `usage` of the next chunk. Mutable.

    No chunk has the field unless `include_usage` asks for it. Then it is null in all but the last,
    or, with vLLM's `continuous_usage_stats`, what has been used so far.

    Attributes:
        field: The value.
        is_running: Whether it changes from piece to piece.
    """

    def __init__(self, options: StreamOptions | None, prepared: PreparedRequest) -> None:
        options = options or StreamOptions()
        self.field: Usage | UnsetType | None = None if options.include_usage else UNSET
        self.is_running = bool(options.include_usage and options.continuous_usage_stats)
        self._prompt_tokens = sum(len(prompt) for prompt in prepared.prompts)
        self._completions: dict[int, int] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether the stream ends with a chunk that says it."""
        return self.field is not UNSET

    def count(self, piece: Piece) -> None:
        """Takes note of a piece. What came from the prefix cache is known at the end only."""
        if not self.is_running:
            return
        self._completions[piece.index] = piece.num_tokens
        completion_tokens = sum(self._completions.values())
        self.field = Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=self._prompt_tokens + completion_tokens,
            prompt_tokens_details=None,
        )
