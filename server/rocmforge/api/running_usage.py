"""Usage while an answer is streamed, for clients that want it in every chunk."""

from __future__ import annotations

from rocmforge.api.generation import Piece
from rocmforge.api.plan import Plan
from rocmforge.api.schema import StreamOptions, Usage


class RunningUsage:
    """Counts the tokens of all choices as their pieces come. Mutable."""

    def __init__(self, plan: Plan) -> None:
        self._prompt_tokens = sum(len(prompt) for prompt in plan.prompts)
        self._completions: dict[int, int] = {}

    @classmethod
    def if_wanted(cls, options: StreamOptions | None, plan: Plan) -> RunningUsage | None:
        """One, if a request with these options asks for it; as in vLLM, with `include_usage`."""
        if options is None or not (options.include_usage and options.continuous_usage_stats):
            return None
        return cls(plan)

    def after(self, piece: Piece) -> Usage:
        """Tokens up to this piece. What came from the prefix cache is known at the end only."""
        self._completions[piece.index] = piece.num_tokens
        completion_tokens = sum(self._completions.values())
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=self._prompt_tokens + completion_tokens,
            prompt_tokens_details=None,
        )
