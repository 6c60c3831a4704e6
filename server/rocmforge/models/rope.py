"""Rotary position embedding: tables of cosines and sines, made on the host for every backend.

Angles are computed in float64 and rounded once: float32 angles lose three digits at position
10,000, and backends that share a table cannot differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rocmforge.models.config import ModelConfig
from rocmforge.models.rope_config import RopeConfig, RopeScaling, RopeScalingKind

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RopeTable:
    """Cosine and sine by position, float32 `[max_context, rotary_dim / 2]` each."""

    cos: npt.NDArray[np.float32]
    sin: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class AxisRotation:
    """The rotation by positions that differ from axis to axis, as those in images do."""

    frequencies: Float64Array  # [rotary_dim / 2], radians per position
    axes: npt.NDArray[np.intp]  # [rotary_dim / 2]
    gain: float

    def rows(self, positions: npt.NDArray[np.int32]) -> RopeTable:
        """Returns a row of cosines and one of sines for each of these positions, [rows, axes].

        Where a position is the same on all axes, they are those of the model's table.
        """
        return _cos_and_sin(positions[:, self.axes] * self.frequencies, self.gain)


@dataclass(frozen=True, slots=True, eq=False)
class RopeTables:
    """The model's tables; `local_table` is for layers whose spec says `local_rope`."""

    table: RopeTable
    local_table: RopeTable | None
    # What multiplies queries by position, float32 [max_context]; None: nothing does.
    query_gains: npt.NDArray[np.float32] | None = None
    by_axes: AxisRotation | None = None  # of a model whose positions have axes


@dataclass(frozen=True, slots=True, eq=False)
class RopeFactors:
    """Divisors of the frequencies, [rotary_dim / 2] each, above 0; None for none.

    Most models have one set, if any. LongRoPE has one for contexts up to the original one, and
    another beyond it.
    """

    short: Float64Array | None = None
    long: Float64Array | None = None


def load_rope_tables(config: ModelConfig, factors: RopeFactors, max_context: int) -> RopeTables:
    """Makes the tables for positions `0..max_context - 1`.

    LongRoPE has two sets of factors. A table is made for a whole run of the server, so the long
    ones are taken when the served context exceeds the original one, whatever a request's length.
    """
    rope, local = config.rope, config.local_rope
    assert rope is not None, "a model without rope has no tables"
    scaling = rope.scaling
    is_long = scaling is not None and max_context > scaling.original_context
    frequencies = scaled_frequencies(rope, factors.long if is_long else factors.short)
    gain = scaling.attention_factor if scaling else 1.0
    return RopeTables(
        _table(frequencies, gain, max_context),
        None if local is None else _table(scaled_frequencies(local, None), 1.0, max_context),
        _query_gains(scaling, max_context),
        AxisRotation(frequencies, np.array(rope.axes, np.intp), gain) if rope.axes else None,
    )


def _query_gains(scaling: RopeScaling | None, max_context: int) -> npt.NDArray[np.float32] | None:
    if scaling is None or not scaling.temperature:
        return None
    beyond = np.arange(max_context) // scaling.original_context
    return (1 + scaling.temperature * np.log1p(beyond)).astype(np.float32)


def scaled_frequencies(rope: RopeConfig, factors: Float64Array | None) -> Float64Array:
    """Returns each pair's radians per position, [rotary_dim / 2], divided by factors if given."""
    if rope.axes_restart:
        pairs = enumerate(rope.axes.count(axis) for axis in range(max(rope.axes) + 1))
        frequencies = np.concatenate(
            [_frequencies(rope.theta, 2 * count, axis * rope.axes_shift) for axis, count in pairs]
        )
    else:
        frequencies = _frequencies(rope.theta, rope.rotary_dim)
    if factors is not None:
        frequencies = frequencies / factors
    scaling = rope.scaling
    if scaling is None or scaling.kind is RopeScalingKind.LONGROPE:
        return frequencies
    interpolated = frequencies / scaling.factor
    if scaling.kind is RopeScalingKind.LINEAR:
        return interpolated
    keep = _yarn_ramp(rope, scaling) * scaling.extrapolation_factor
    return interpolated * (1 - keep) + frequencies * keep


def _frequencies(theta: float, rotary_dim: int, shift: float = 0.0) -> Float64Array:
    pairs = np.arange(0, rotary_dim, 2, dtype=np.float64) + 2 * shift
    return theta ** (-pairs / rotary_dim)


def _yarn_ramp(rope: RopeConfig, scaling: RopeScaling) -> Float64Array:
    """Returns 1 for pairs that turn often in the original context, 0 for slow ones, or between."""

    def pair_turning(times: float) -> float:
        turns = scaling.original_context / (times * 2 * math.pi)
        return rope.rotary_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.rounds_bounds:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    pairs = np.arange(rope.rotary_dim // 2, dtype=np.float64)
    return 1 - np.clip((pairs - low) / max(high - low, 0.001), 0, 1)


def _table(frequencies: Float64Array, gain: float, max_context: int) -> RopeTable:
    return _cos_and_sin(np.arange(max_context, dtype=np.float64)[:, None] * frequencies, gain)


def _cos_and_sin(angles: Float64Array, gain: float) -> RopeTable:
    return RopeTable(
        (np.cos(angles) * gain).astype(np.float32), (np.sin(angles) * gain).astype(np.float32)
    )
