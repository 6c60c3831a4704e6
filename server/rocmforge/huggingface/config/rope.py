"""Rotary position embedding as `config.json` spells it: one way today, others in older files.

Today `rope_parameters` holds everything, by kind of layer where kinds differ. Before Transformers 5
there were `rope_theta`, `rope_scaling` (with `type` for `rope_type`), `partial_rotary_factor` and,
for the layers with a window, names of each family's own. The formulas are those of Transformers'
`modeling_rope_utils.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.rope import RopeFactors
from rocmforge.models.rope_config import (
    PositionAxes,
    RopeConfig,
    RopeScaling,
    RopeScalingKind,
    RopeStyle,
    axes_of_pairs,
)

Float64Array = npt.NDArray[np.float64]

_MOST_AXES: Final = 4
_LLAMA3: Final = "llama3"
_PROPORTIONAL: Final = "proportional"  # of Gemma 4
_KINDS: Final = ("default", "mrope", "linear", "yarn", "longrope", _LLAMA3, _PROPORTIONAL)
_NEVER: Final = 1e30
"""Divides the frequency of a pair that does not rotate, as in GGUF files."""


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """The rotation of a model, and the divisors of its frequencies."""

    config: RopeConfig
    factors: RopeFactors = field(default_factory=RopeFactors)


def read_rope(
    config: JsonObject,
    *,
    style: RopeStyle,
    head_dim: int,
    max_context: int,
    theta: float,
    partial: float = 1.0,
    kind: str = "full_attention",
) -> Rope:
    """Reads the rotation of the layers of a kind.

    Args:
        config: The model's.
        style: Which elements of a head rotate together.
        head_dim: Elements of a head.
        max_context: Tokens, by the configuration.
        theta: The base where the configuration says none.
        partial: The share of a head that rotates where the configuration says none.
        kind: The name of the kind of layers, where the configuration has several rotations.

    Raises:
        UnsupportedArchitecture: The frequencies are scaled in a way that we do not have.
        BadFolder: A value makes no sense.
    """
    parameters = config.get_object("rope_parameters") or config.get_object("rope_scaling")
    if parameters is not None and (of_kind := parameters.get_object(kind)) is not None:
        parameters = of_kind
    parameters = parameters or config.empty("rope_parameters")
    name = parameters.get_str("rope_type", None) or parameters.get_str("type", "default")
    if name == "su" or (name == "yarn" and parameters.has("long_factor")):
        name = "longrope"  # as the first files of Phi-3 call it
    if name not in _KINDS and not (name == "dynamic" and parameters.has("alpha")):
        raise UnsupportedArchitecture(
            f"{config.get_str('model_type', '')} with rope scaling {name!r}",
            tuple(f"rope scaling {kind!r}" for kind in _KINDS),
        )
    base = parameters if parameters.has("rope_theta") else config
    found = base.get_float("rope_theta", theta)
    if not 1 < found < math.inf:
        raise base.bad("rope_theta", f"{found} is not a rope base")
    if name == _PROPORTIONAL:
        return _proportional(parameters, style, head_dim, found)
    rotary_dim = _rotary_dim(config, parameters, head_dim, partial)
    if name == "dynamic":
        found *= _alpha(parameters) ** (rotary_dim / max(rotary_dim - 2, 1))
    return _Scaling(config, parameters, max_context).read(name, style, rotary_dim, found)


def with_axes(config: JsonObject, rope: Rope, order: PositionAxes, usual: tuple[int, ...]) -> Rope:
    """Returns a rotation by positions on several axes.

    Args:
        config: The model's.
        rope: The rotation by a single number.
        order: In which pairs belong to axes.
        usual: Pairs of each axis where the configuration does not say it; they are not those of
            every size of head, and then it is a rotation by one number.

    Raises:
        BadFolder: The axes do not have all pairs of a head.
    """
    parameters = config.get_object("rope_parameters") or config.get_object("rope_scaling")
    parameters, pairs = parameters or config, rope.config.rotary_dim // 2
    numbers = parameters.get_numbers("mrope_section")
    if numbers is None and sum(usual) != pairs:
        return rope
    sections = tuple(map(int, usual if numbers is None else numbers))
    if min(sections, default=-1) < 0 or sum(sections) != pairs or len(sections) > _MOST_AXES:
        raise parameters.bad(
            "mrope_section", f"{list(sections)} are not the {pairs} pairs of a head"
        )
    return replace(rope, config=replace(rope.config, axes=axes_of_pairs(sections, order)))


def _proportional(parameters: JsonObject, style: RopeStyle, head_dim: int, theta: float) -> Rope:
    """Returns a rotation of the first pairs only, as fast as if all of them rotated."""
    key = "partial_rotary_factor"
    share, factor = parameters.get_float(key, 1.0), parameters.get_float("factor", 1.0)
    if not 0 < share <= 1:
        raise parameters.bad(key, f"{share} is no share of a head")
    if not 1e-6 <= factor < 1 << 31:
        raise parameters.bad("factor", f"{factor} is not positive, too small or too large")
    pairs = np.arange(head_dim // 2)
    divisors = np.where(pairs < int(share * head_dim // 2), factor, _NEVER)
    config = RopeConfig(style=style, rotary_dim=head_dim, theta=theta, scaling=None)
    return Rope(config, RopeFactors(short=divisors, long=divisors))


def _alpha(parameters: JsonObject) -> float:
    """Returns what makes the base of Hunyuan larger, for every context alike."""
    alpha = parameters.get_float("alpha")
    if not 1 <= alpha < 1 << 31:
        raise parameters.bad("alpha", f"{alpha} is not between 1 and {(1 << 31) - 1}")
    return alpha


def _rotary_dim(config: JsonObject, parameters: JsonObject, head_dim: int, partial: float) -> int:
    place = parameters if parameters.has("partial_rotary_factor") else config
    share = place.get_float("partial_rotary_factor", partial)
    dim = int(head_dim * share) if 0 < share < 2 else 0
    if not 0 < dim <= head_dim or dim % 2:
        raise place.bad(
            "partial_rotary_factor", f"{share} of {head_dim} elements of a head cannot rotate"
        )
    return dim


class _Scaling:
    """Reads how the frequencies are scaled."""

    def __init__(self, config: JsonObject, parameters: JsonObject, max_context: int) -> None:
        self._config = config
        self._parameters = parameters
        self._max_context = max_context

    def read(self, name: str, style: RopeStyle, rotary_dim: int, theta: float) -> Rope:
        def rope(scaling: RopeScaling | None) -> RopeConfig:
            return RopeConfig(style=style, rotary_dim=rotary_dim, theta=theta, scaling=scaling)

        match name:
            case "llama3":
                factors = self._llama3_factors(rotary_dim, theta)
                return Rope(rope(None), RopeFactors(short=factors, long=factors))
            case "longrope":
                short, long = (self._list(f"{key}_factor", rotary_dim) for key in ("short", "long"))
                return Rope(rope(self._longrope()), RopeFactors(short=short, long=long))
            case "yarn":
                return Rope(rope(self._yarn()))
            case "linear":
                return Rope(rope(self._linear()))
        return Rope(rope(None))

    def _linear(self) -> RopeScaling | None:
        factor = self._positive("factor")
        if factor == 1:
            return None
        return RopeScaling(
            kind=RopeScalingKind.LINEAR, factor=factor, original_context=self._original
        )

    def _yarn(self) -> RopeScaling:
        parameters, original = self._parameters, self._original
        factor = self._positive("factor", self._max_context / original)
        if not parameters.has("attention_factor"):
            keys, over, under = ("mscale", "mscale_all_dim"), 1.0, 0.0
            if all(parameters.get_float(key, 0.0) for key in keys):
                over, under = (self._positive(key) for key in keys)
            gain = _yarn_gain(factor, over) / _yarn_gain(factor, under)
        else:
            gain = self._positive("attention_factor")
        return RopeScaling(
            kind=RopeScalingKind.YARN,
            factor=factor,
            original_context=original,
            attention_factor=gain,
            beta_fast=self._positive("beta_fast", 32.0),
            beta_slow=self._positive("beta_slow", 1.0),
            rounds_bounds=parameters.get_bool("truncate", True),
            temperature=self._temperature(),
        )

    def _temperature(self) -> float:
        """Returns what lengthens queries far from the start, as Ministral 3 has it."""
        key = "llama_4_scaling_beta"
        temperature = self._parameters.get_float(key, 0.0)
        if not 0 <= temperature < 1 << 31:
            raise self._parameters.bad(key, f"{temperature} is negative or too large")
        return temperature

    def _longrope(self) -> RopeScaling:
        original = self._original
        factor = self._positive("factor", self._max_context / original)
        default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return RopeScaling(
            kind=RopeScalingKind.LONGROPE,
            factor=factor,
            original_context=original,
            attention_factor=self._positive("attention_factor", default),
        )

    def _llama3_factors(self, rotary_dim: int, theta: float) -> Float64Array:
        """Returns divisors: 1 for pairs that turn often, the factor for slow ones, or between."""
        factor = self._positive("factor")
        low, high = self._positive("low_freq_factor"), self._positive("high_freq_factor")
        if low >= high:
            raise self._parameters.bad("high_freq_factor", f"{high} is not above {low}")
        turns = self._original / (
            2 * math.pi * theta ** (np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
        )
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float64)

    def _list(self, key: str, rotary_dim: int) -> Float64Array:
        numbers = self._parameters.get_numbers(key)
        if numbers is None or len(numbers) != rotary_dim // 2 or min(numbers) < 1e-6:
            raise self._parameters.bad(key, f"it is not a list of {rotary_dim // 2} divisors")
        return np.array(numbers, np.float64)

    @property
    def _original(self) -> int:
        """The context before it was extended, in tokens."""
        key = "original_max_position_embeddings"
        place = self._parameters if self._parameters.has(key) else self._config
        original = place.get_positive(key, self._max_context)
        if original < 2:
            raise place.bad(key, f"{original} is no context")
        return original

    def _positive(self, key: str, default: float | None = None) -> float:
        parameters = self._parameters
        value = parameters.get_float(key) if default is None else parameters.get_float(key, default)
        if not 1e-6 <= value < 1 << 31:  # else what is computed from it may not be finite
            raise parameters.bad(key, f"{value} is not positive, too small or too large")
        return value


def _yarn_gain(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
