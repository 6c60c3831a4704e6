"""Sums of the residual and what is added to it, and their norms: which launch makes which.

A part of a layer may leave its last step to the launch that adds it, and that launch may leave the
norm to those that read it. Who needs either at once has it made here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeGuard

from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation, ActivationArrays, Forms
from rocmforge_hip.ops.experts.beside import BesideKernels, DownBeside
from rocmforge_hip.ops.experts.deferred import DeferredExperts, UnmadeMix
from rocmforge_hip.ops.experts.pair_sums import PairSums, UnmadePairs
from rocmforge_hip.ops.experts.routing import RouteKernels, UnmadeSum
from rocmforge_hip.ops.linear.gemm import UnmadeSplits
from rocmforge_hip.ops.linear.later import (
    NormLater,
    RouterSums,
    UnmadeProduct,
    is_norm_later,
)
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.norms import LayerNorms, RmsNorms, UnmadeNorm, without_norm
from rocmforge_hip.ops.operands import empty, f32_of, optional_vector
from rocmforge_hip.weights.formats import Weight


class Sums:
    """Adds to the residual and norms, as `Ops` says.

    Args:
        arena: The arrays of the activations.
        products: Multiplies with dense matrices.
        norms: Of the model's kind.
        eps: Of norms.
        route: Of a model with experts.
        experts: Of such a model, those of one token.
        beside: Those of a token and a network beside them, of a model that has some.
        pair_sums: Of a model with experts, what adds up those of several tokens.
    """

    def __init__(
        self,
        arena: ActivationArrays[DeviceArray],
        products: LinearKernels,
        norms: RmsNorms | LayerNorms,
        eps: float,
        route: RouteKernels | None,
        experts: DeferredExperts | None,
        beside: BesideKernels | None,
        pair_sums: PairSums | None,
    ) -> None:
        self._arena = arena
        self._products = products
        self._norms: Final = norms
        self._eps = eps
        self._route = route
        self._experts = experts
        self._beside = beside
        self._pair_sums = pair_sums

    def norm(
        self, x: Activation, weight: Weight | None, bias: Weight | None, eps: float | None
    ) -> Activation:
        """Does what `Ops.norm` says, or leaves it to what adds it to the residual."""
        is_mix = isinstance(x, UnmadeMix | UnmadePairs)
        x = self.made(x) if is_mix or (isinstance(x, UnmadeProduct) and x.defers) else x
        if isinstance(x, UnmadeProduct | UnmadeSum):
            assert eps is None, "such products are not left for later"
            return replace(x, post_norm=weight)
        if _is_in_splits(x):
            assert eps is None, "such products are not left for later"
            x.post_norm = weight
            return x
        # What is added to the residual is normed for that; anything else, to be multiplied.
        experts = self._arena.experts
        is_added = x.arrays is self._arena.delta or (experts and x.arrays is experts.mixed)
        if is_added and isinstance(self._norms, RmsNorms) and eps is None:
            assert weight is not None
            return UnmadeNorm(x.arrays, x.rows, x.features, x=x, weight=weight)
        out = self.normed(x, added=x.arrays is self._arena.delta)
        self._norms.norm(x, weight, bias, out, eps)
        return out

    def add_norm(
        self,
        residual: Activation,
        delta: Activation,
        weight: Weight | None,
        bias: Weight | None,
        scale: Weight | None,
    ) -> tuple[Activation, Activation]:
        """Does what `Ops.add_norm` says; writes the sum to the place of the residual."""
        if scale is None and weight is not None:
            later = self.add_and_defer(residual, delta, weight)
            if later is not None:
                return residual, later
        if isinstance(delta, UnmadeProduct) and delta.defers:
            delta = self.made(delta)
        if residual.arrays is self._arena.normed:  # whose float32 is the sum
            out = empty(self._arena.normed, residual.rows, residual.features, half=True)
        else:
            out = self.normed(residual)
        if isinstance(delta, UnmadeProduct):
            vector, factor = optional_vector(weight, residual.features), optional_vector(scale, 1)
            self._products.make_and_norm(delta, residual, vector, self._eps, out, factor)
        elif isinstance(delta, UnmadeSum) and self._adds_beside(delta, weight):
            assert self._beside is not None
            assert weight is not None
            self._beside.add_and_norm(residual, delta, weight, scale, out)
        elif (
            isinstance(delta, UnmadeSum)
            and self._route is not None
            and self._route.adds_and_norms(weight, residual.features)
        ):
            for x in (delta.first, delta.second):
                self._made_beside(without_norm(x)[0])
            self._route.add_and_norm(residual, delta, weight, scale, out)
        else:
            self.add_and_norm(residual, delta, weight, bias, out, scale)
        return residual, out

    def add_and_norm(
        self,
        residual: Activation,
        delta: Activation,
        weight: Weight | None,
        bias: Weight | None,
        out: Activation,
        scale: Weight | None = None,
    ) -> None:
        """Adds to the residual and norms the sum in a launch of its own.

        It adds up what splits of a product left, and what experts made of pairs.
        """
        if _is_in_splits(delta) and weight is not None:
            assert isinstance(self._norms, RmsNorms)
            self._products.gemm.take(delta)
            self._norms.add_splits_norm(residual, delta, weight, out, scale)
            return
        if isinstance(delta, UnmadePairs) and weight is not None and scale is None:
            assert self._pair_sums is not None
            self._pair_sums.add_and_norm(residual, delta, weight, out)
            return
        x, post_norm = self.unnormed(delta)
        self._norms.add_norm(residual, x, weight, bias, out, residual.f32, scale, post_norm)

    def _adds_beside(self, total: UnmadeSum, weight: Weight | None) -> bool:
        """Returns whether the launch that makes what is added up does all of that."""
        return self._beside is not None and self._beside.adds_and_norms(total, weight)

    def _made_beside(self, x: Activation) -> None:
        """Makes a product of experts and a network beside them, if it is one that is not made."""
        if isinstance(x, DownBeside):
            assert self._beside is not None
            self._beside.make(x.both)

    def add_and_defer(
        self,
        residual: Activation,
        delta: Activation,
        weight: Weight,
        routed: RouterSums | None = None,
    ) -> NormLater | None:
        """Adds to the residual and leaves the norm of the sum for later; None: it cannot.

        With `routed`, what a product of one row makes of it is multiplied with a router, too.
        """
        if isinstance(delta, UnmadeProduct) and delta.defers:
            return self._products.add_and_defer(delta, residual, weight, self._eps, routed)
        if isinstance(delta, UnmadeMix):
            assert self._experts is not None
            return self._experts.add_and_defer(delta, residual, weight, self._eps)
        return None

    def norm_of_sum(
        self, residual: Activation, delta: Activation, weight: Weight, bias: Weight | None
    ) -> Activation:
        """Does what `Ops.norm_of_sum` says."""
        out = self.normed(residual)
        total = residual.f32 if isinstance(self._norms, RmsNorms) else None
        x, post_norm = self.unnormed(delta)
        self._norms.add_norm(residual, x, weight, bias, out, total, post_norm=post_norm)
        return out

    def two_norms_of_sum(
        self,
        residual: Activation,
        delta: Activation,
        first: tuple[Weight, Weight | None],
        second: tuple[Weight, Weight | None],
    ) -> Activation:
        """Does what `Ops` says; writes the first norm to the place of delta."""
        between = Activation(delta.arrays, delta.rows, delta.features, f32=f32_of(delta))
        self._norms.add_norm(residual, delta, *first, between, None)
        return self.norm_of_sum(residual, between, *second)

    def normed(self, like: Activation, *, added: bool = False) -> Activation:
        """Returns the place of a norm; unless it is only added, with a form to be multiplied."""
        rows, features = like.rows, like.features
        if added:
            assert self._arena.post_normed is not None
            return empty(self._arena.post_normed, rows, features, half=False)
        return self.multiplied(empty(self._arena.normed, rows, features, half=False))

    def multiplied(self, out: Activation) -> Activation:
        """Returns the activation with the form that as many rows are multiplied in."""
        if out.rows <= self._products.gemv_rows:
            self._products.forms.give_int8(out)
        else:
            out.f16 = out.arrays.float16(out.rows, out.features)
        return out

    def to_multiply(self, arrays: Forms[DeviceArray], rows: int, features: int) -> Activation:
        """Returns an activation to write, with the forms that so many rows are multiplied in."""
        if rows <= self._products.gemv_rows:
            return self.multiplied(empty(arrays, rows, features, half=False))
        return self.multiplied(Activation(arrays, rows, features))

    def completed(self, x: Activation) -> Activation:
        """Returns the activation, made now if it is a norm that was left for what reads it."""
        if is_norm_later(x):
            x.f32, x.is_made = x.arrays.float32(x.rows, x.features), True
            self._norms.norm(x.residual, x.weight, None, x)
        return x

    def beside_experts(self, x: Activation) -> Activation:
        """Returns what is added to theirs, made but for a norm, unless their launch makes it."""
        if isinstance(without_norm(x)[0], DownBeside):
            return x
        x, norm = self.unnormed(x)
        return x if norm is None else self.norm(x, norm, None, None)

    def made(self, x: Activation) -> Activation:
        """Returns the activation itself, made now if that was left for later."""
        x, post_norm = self.unnormed(x)
        if post_norm is None:
            return x
        is_second = x.arrays is self._arena.post_normed
        arrays = self._arena.delta if is_second else self._arena.post_normed
        assert arrays is not None
        out = empty(arrays, x.rows, x.features, half=False)
        self._norms.norm(x, post_norm, None, out)
        return out

    def unnormed(self, x: Activation) -> tuple[Activation, Weight | None]:
        """Returns an activation, made now if need be, and its norm that is left for later."""
        if isinstance(x, UnmadeProduct):
            return self._products.multiply(x.x, x.part, x.bias), x.post_norm
        if isinstance(x, UnmadeSplits):
            return self._products.gemm.make(x), x.post_norm
        if isinstance(x, UnmadeMix):
            assert self._experts is not None
            return self._experts.make(x), None
        if isinstance(x, UnmadePairs):
            assert self._pair_sums is not None
            return self._pair_sums.make(x), None
        if isinstance(x, UnmadeSum):
            assert self._route is not None
            shared = self.made(x.second)
            self._route.add_shared(self.made(x.first), shared, x.shares)
            return shared, x.post_norm
        x, norm = without_norm(x)
        self._made_beside(x)
        return x, norm


def _is_in_splits(x: Activation) -> TypeGuard[UnmadeSplits]:
    """Returns whether nobody has added up yet what splits of the product left."""
    return isinstance(x, UnmadeSplits) and not x.is_made
