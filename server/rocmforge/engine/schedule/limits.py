"""The limits that the scheduler decides under."""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """The operator's limits.

    Raises:
        ConfigurationError: the limits contradict each other.
    """

    max_sequences: int  # computed in one step
    max_batched_tokens: int  # computed in one step; at least max_sequences
    max_waiting: int  # unfinished requests beyond max_sequences
    max_score_rows: int = 256  # prompt tokens scored in one step: each costs a row of logits
    prefix_cache: bool = True
    # Rows of an image that see each other both ways, which no step computes a part of; 0 = none do.
    whole_rows: int = 0
    # A step in which sequences decode should take no longer for prompts; 0 = however long.
    max_stall_ns: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.max_sequences <= self.max_batched_tokens:
            raise ConfigurationError(
                f"The token budget of a step ({self.max_batched_tokens}) must not be below the "
                f"number of concurrent sequences ({self.max_sequences}), which must be positive."
            )
        if self.max_sequences + self.whole_rows > self.max_batched_tokens:
            raise ConfigurationError(
                f"The token budget of a step ({self.max_batched_tokens}) must have room for the "
                f"{self.whole_rows} rows of an image beside {self.max_sequences} sequences."
            )

    @property
    def max_live(self) -> int:
        """Unfinished requests held at once."""
        return self.max_sequences + self.max_waiting
