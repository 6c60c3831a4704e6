"""How a model rotates queries and keys by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class RopeStyle(StrEnum):
    """The choice of the elements of a head that rotate together in pairs."""

    NORMAL = "normal"  # (0, 1), (2, 3), ...: GGUF's layout for Llama
    NEOX = "neox"  # (i, i + rotary_dim / 2)


class PositionAxes(StrEnum):
    """The order in which the pairs of a head belong to the axes of positions: time, row, column."""

    SECTIONS = (
        "sections"  # all of an axis, then all of the next: Wang et al. 2024, arXiv:2409.12191
    )
    INTERLEAVED = "interleaved"  # in turn, while rows and columns have some; then those of time


class RopeScalingKind(StrEnum):
    """The method by which a model reaches beyond its training context."""

    LINEAR = "linear"
    YARN = "yarn"  # Peng et al. 2023, arXiv:2309.00071
    LONGROPE = "longrope"  # Ding et al. 2024, arXiv:2402.13753; its factors are tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Context extension from the file's `rope.scaling.*` keys."""

    kind: RopeScalingKind
    factor: float
    original_context: int
    attention_factor: float = 1.0  # multiplies cos and sin
    extrapolation_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    rounds_bounds: bool = True  # YaRN's ramp begins and ends at a pair
    # Queries are multiplied by 1 + temperature * ln(1 + floor(position / original_context)).
    temperature: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021)."""

    style: RopeStyle
    rotary_dim: int  # leading elements of each head that rotate; the rest pass through
    theta: float
    scaling: RopeScaling | None
    # Of each pair, the axis of positions that turns it; empty: a position is one number. To text,
    # all axes are alike.
    axes: tuple[int, ...] = ()
    axes_restart: bool = False  # the pairs of each axis have the frequencies of a head of their own
    # Then the frequencies of an axis are so many pairs further than those of the axis before it.
    axes_shift: float = 0.0


def axes_of_pairs(sections: Sequence[int], order: PositionAxes) -> tuple[int, ...]:
    """Returns the axis of each pair of a head.

    Args:
        sections: Pairs of each axis.
        order: In which they stand.
    """
    if order is PositionAxes.SECTIONS:
        return tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    count, axes = len(sections), [0] * sum(sections)
    for axis, pairs in enumerate(sections[1:], start=1):
        for pair in range(axis, min(pairs * count, len(axes)), count):
            axes[pair] = axis
    return tuple(axes)
