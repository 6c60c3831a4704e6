"""Products that are left for later, and norms of their sums with the residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.weights.formats import MatrixPart, Weight


@dataclass(slots=True, eq=False, kw_only=True)
class UnmadeProduct(Activation):
    """A product that what adds it to the residual makes."""

    x: Activation
    part: MatrixPart
    bias: Weight | None
    post_norm: Weight | None = None  # what is added is the norm of the product
    defers: bool = False  # whether the norm of the sum is left for what reads it, if that can be


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSums:
    """A router, and the sums that its logits are of (kernels/include/rf/experts/logit_sums.h)."""

    router: DeviceArray  # float32 [logits, features]
    logit_sums: DeviceArray  # int64 [logits]


@dataclass(slots=True, eq=False, kw_only=True)
class NormLater(Activation):
    """A norm that what reads it completes (kernels/include/rf/gemv/deferred_norm.h).

    Until somebody makes it, it has the int8 form alone, with scales that lack its factor.
    """

    residual: Activation  # what is normed
    weight: Weight
    squares: DeviceArray  # float32 [rows, features / QUANT_BLOCK]
    eps: float
    is_made: bool = False

    def parts(self) -> dict[str, DeviceArray]:
        """Returns what is left for the product that reads this, as arguments of kernels."""
        assert self.q is not None
        assert self.q_scale is not None
        return {"normed_q": self.q, "normed_q_scale": self.q_scale, "squares": self.squares}


def is_norm_later(x: Activation) -> TypeGuard[NormLater]:
    """Returns whether this is a norm that nobody has made yet."""
    return isinstance(x, NormLater) and not x.is_made
