"""The ways to launch a step that only decodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVariant:
    """Which of several ways a step takes that only decodes.

    Each gives the same bits; which is the fastest depends on the device (`run/trials/variants.py`).
    """

    fuses_attention: bool
    """Whether one launch rotates, stores, attends and puts splits together, or one each."""
    fuses_states: bool
    """Whether one launch convolves, updates a state and norms, or one each."""
    norms_products: bool
    """Whether the last block of a product adds it to the residual and norms the sum."""
    defers_norms: bool
    """Whether products are added where they are made, and what reads the sum completes its norm.
    A network beside experts is in their launches."""
    rounds_products: bool
    """Whether the product with gate and up is rounded to int8 by the launch that makes it. With
    latent attention, so are results of heads, and one launch rounds queries, multiplies them with
    matrices of heads, rotates and stores."""

    @property
    def norms_states(self) -> bool:
        """Whether the launch that updates states of Mamba-2 norms groups of heads, too."""
        return self.fuses_states and (self.norms_products or self.defers_norms)


PLAIN: Final = StepVariant(
    fuses_attention=False,
    fuses_states=False,
    norms_products=False,
    defers_norms=False,
    rounds_products=False,
)
"""The way of all other steps."""
_FUSED: Final = replace(PLAIN, fuses_attention=True, fuses_states=True)
_ROUNDED: Final = replace(_FUSED, rounds_products=True)
VARIANTS: Final = MappingProxyType(
    {
        "plain": PLAIN,
        "fused": _FUSED,
        "rounded": _ROUNDED,
        "fewest": replace(_ROUNDED, norms_products=True),
        "deferred": replace(_ROUNDED, defers_norms=True),
        "deferred-plain": replace(PLAIN, rounds_products=True, defers_norms=True),
    }
)
"""By name: those that there is a choice of."""
