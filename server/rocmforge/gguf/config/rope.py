"""The keys of a model that say how queries and keys rotate by position."""

from __future__ import annotations

import math

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.gguf.config.keys import KeyReader
from rocmforge.gguf.names import LONG_FACTORS, PERMUTED
from rocmforge.models.rope_config import (
    RopeConfig,
    RopeScaling,
    RopeScalingKind,
    RopeStyle,
    axes_of_pairs,
)


class RopeReader(KeyReader):
    """Reads them, by the model's family."""

    def check_axes(self) -> None:
        """Refuses positions on several axes where the family has none."""
        if self._family.axes is None and any(self._sections()[1:]):
            raise UnsupportedArchitecture(
                f"{self._name} with positions on several axes "
                f"({self._key('rope.dimension_sections')})",
                self._known,
            )

    def read(self, head_dim: int, context: int) -> RopeConfig | None:
        """Returns the rotation of layers without one of their own; None if nothing rotates."""
        if not self._family.has_rope:
            return None
        # Files of Granite say with this key whether queries and keys rotate at all.
        if self._family.is_scaled and not self._file.get_bool(
            self._key("rope.scaling.finetuned"), True
        ):
            return None
        rotary_dim = self._rotary_dim(head_dim)
        return RopeConfig(
            style=self._rope_style,
            rotary_dim=rotary_dim,
            theta=self._theta("rope.freq_base", 10000.0),
            scaling=self._scaling(context),
            axes=self._axes(rotary_dim // 2),
        )

    def read_local(self, head_dim: int) -> RopeConfig | None:
        """Returns the rotation of layers with a window, where it differs."""
        suffix, default = "rope.freq_base_swa", self._family.local_theta_default
        if self._family.unscaled_windows:
            default = self._theta("rope.freq_base", 10000.0)
        if default is None:
            if self._key(suffix) in self._file.metadata:
                raise self._bad(suffix, "the architecture has no second rope base")
            return None
        rotary_dim = self._rotary_dim(head_dim)
        if self._family.has_uneven_heads:
            own = self._positive("attention.key_length_swa", head_dim)
            rotary_dim = self._positive("rope.dimension_count_swa", own)
            if rotary_dim > own or rotary_dim % 2:
                reason = f"{rotary_dim} of {own} elements cannot rotate"
                raise self._bad("rope.dimension_count_swa", reason)
        return RopeConfig(
            style=self._rope_style,
            rotary_dim=rotary_dim,
            theta=self._theta(suffix, default),
            scaling=None,
        )

    def rotates(self, layer: int, window: int | None) -> bool:
        """Returns whether queries and keys of a layer, with this window, rotate at all."""
        period = self._family.unrotated_period
        if self._family.rotates_in_windows:
            return window is not None
        return period is None or (layer + 1) % period != 0

    @property
    def _rope_style(self) -> RopeStyle:
        return RopeStyle.NORMAL if self._name in PERMUTED else self._family.rope_style

    def _theta(self, suffix: str, default: float) -> float:
        theta = self._file.get_float(self._key(suffix), default)
        if not 1 < theta < math.inf:
            raise self._bad(suffix, f"{theta} is not a rope base")
        return theta

    def _sections(self) -> list[int]:
        """Returns the pairs of a head for each axis of positions, as far as a file says it."""
        found = self._file.get_ints(self._key("rope.dimension_sections"), None)
        return [] if found is None else [int(count) for count in found]

    def _axes(self, pairs: int) -> tuple[int, ...]:
        sections = self._sections()
        if self._family.axes is None or not any(sections):
            return ()
        while not sections[-1]:
            sections = sections[:-1]
        if min(sections) < 0 or sum(sections) != pairs:
            reason = f"{sections} are not the {pairs} pairs of a head"
            raise self._bad("rope.dimension_sections", reason)
        return axes_of_pairs(sections, self._family.axes)

    def _scaling(self, context: int) -> RopeScaling | None:
        """Returns how the context is extended, which that of an encoder may not be."""
        scaling = self._stated_scaling(context)
        if self._family.causal:
            return scaling
        if scaling is not None and scaling.factor != 1:
            raise UnsupportedArchitecture(
                f"{self._name} with rope scaling ({self._key('rope.scaling.type')})", self._known
            )
        return None

    def _stated_scaling(self, context: int) -> RopeScaling | None:
        file, key = self._file, self._key
        name = file.get_str(key("rope.scaling.type"), "linear")
        factor = file.get_float(
            key("rope.scaling.factor"), file.get_float(key("rope.scale_linear"), 0.0)
        )
        if factor < 0 or not math.isfinite(factor):
            raise self._bad("rope.scaling.factor", f"{factor} is not positive")
        factor = factor or 1.0
        if LONG_FACTORS in file.tensors:  # Phi-3 files have these, but do not name the kind
            name = RopeScalingKind.LONGROPE
        suffix = "attention.temperature_scale"
        temperature = self._not_negative(suffix) if self._family.has_temperature else 0.0
        if name == "none" or (name == RopeScalingKind.LINEAR and factor == 1.0):
            if temperature:
                raise self._bad(suffix, f"{temperature} without a context that was extended")
            return None
        if name not in tuple(RopeScalingKind):
            raise UnsupportedArchitecture(
                f"{self._name} with rope scaling {name!r} ({key('rope.scaling.type')})",
                self._known,
            )
        kind = RopeScalingKind(name)
        default_gain = 0.1 * math.log(factor) + 1.0 if kind is RopeScalingKind.YARN else 1.0
        if self._family.has_temperature and kind is RopeScalingKind.YARN:
            multiplier = self._not_negative("rope.scaling.yarn_log_multiplier")
            default_gain /= 0.1 * multiplier * math.log(max(factor, 1.0)) + 1.0
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_context=self._positive("rope.scaling.original_context_length", context),
            attention_factor=file.get_float(key("rope.scaling.yarn_attn_factor"), default_gain)
            * file.get_float(key("rope.scaling.attn_factor"), 1.0),
            extrapolation_factor=file.get_float(key("rope.scaling.yarn_ext_factor"), 1.0),
            beta_fast=file.get_float(key("rope.scaling.yarn_beta_fast"), 32.0),
            beta_slow=file.get_float(key("rope.scaling.yarn_beta_slow"), 1.0),
            rounds_bounds=self._family.rounds_yarn,
            temperature=temperature,
        )
