"""The sampling that a model's maker recommends, for requests that say nothing else."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values of a request's fields of the same names. Without a recommendation: OpenAI's."""

    temperature: float = 1.0
    top_k: int = 0  # 0 = all tokens
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def recommended(self) -> dict[str, float]:
        """The values that differ from those that a model without recommendations has."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }
