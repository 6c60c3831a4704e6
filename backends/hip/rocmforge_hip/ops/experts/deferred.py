"""Experts of one token in launches that do what lies between: choice, norms, and the residual.

Gate and up choose the experts and complete the norm of what they read; down adds its sum to the
residual and leaves the norm of that to what reads it (kernels/src/experts/experts_deferred.hip).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rocmforge.models.blocks import Experts
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.kernels import experts as kernels
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.experts.pairs import GATE_UP_THREADS, PairKernels, gate_up_of
from rocmforge_hip.ops.experts.routing import RouteKernels, UnmadeChoice
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear.later import NormLater, UnmadeProduct
from rocmforge_hip.ops.linear.mixed_gemv import TILES_AT_ONCE
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.operands import f32_of, i32_of, optional_vector, part_of, vector_of
from rocmforge_hip.weights.formats import Weight

_TWO_BLOCKS: Final = 2
"""Of a compute unit, as `rf_experts_choose_gate_up_b2` is compiled for them."""


@dataclass(slots=True, eq=False, kw_only=True)
class UnmadeMix(Activation):
    """A weighted sum of what experts make that what adds it to the residual makes."""

    inner: Activation  # of each pair, to be multiplied with down
    chosen: UnmadeChoice
    weights: Activation
    experts: Experts[Weight]


def may_choose_later(
    delta: Activation, norms: Sequence[Weight], experts: Experts[Weight], num_experts: int
) -> bool:
    """Returns whether gate and up may choose among so many experts, and alone read their norm.

    Args:
        delta: What is added to the residual before it.
        norms: Of the sum.
        experts: Of the layer.
        num_experts: Those that the router knows.
    """
    return (
        isinstance(delta, UnmadeProduct)
        and delta.defers
        and delta.rows == 1
        and len(norms) == 1
        and experts.router_norm is None
        and experts.latent_down is None
        and num_experts <= GATE_UP_THREADS
    )


class DeferredExperts:
    """Launches them, as far as there are kernels for the stored types.

    Args:
        library: Where the kernels are.
        geometry: For the device.
        products: Has the int8 forms of activations.
        pairs: What multiplies with down alone.
        route: What chose the experts.
        formats: Stored types of the experts' matrices.
    """

    def __init__(
        self,
        library: KernelLibrary,
        geometry: Geometry,
        products: LinearKernels,
        pairs: PairKernels,
        route: RouteKernels,
        formats: frozenset[str],
    ) -> None:
        self._blocks_at_once = _TWO_BLOCKS * geometry.compute_units
        self._products = products
        self._pairs = pairs
        self._route = route
        self._gate_ups = library.available(
            {name: f"rf_experts_choose_gate_up_{name}" for name in formats},
            kernels.rf_experts_choose_gate_up,
        )
        self._gate_ups_of_two_blocks = library.available(
            {name: f"rf_experts_choose_gate_up_b2_{name}" for name in formats},
            kernels.rf_experts_choose_gate_up,
        )
        self._downs = library.available(
            {name: f"rf_experts_add_down_{name}" for name in formats}, kernels.rf_experts_add_down
        )

    def chooses(self, experts: Experts[Weight]) -> bool:
        """Returns whether gate and up of these experts can choose, with no network beside them."""
        return experts.shared is None and gate_up_of(experts).format.name in self._gate_ups

    def mix(
        self,
        x: NormLater,
        chosen: UnmadeChoice,
        weights: Activation,
        experts: Experts[Weight],
        gate: int,
        out: Activation,
    ) -> Activation:
        """Returns the sum of what its experts make of a token, weighted, maybe to be made later.

        Args:
            x: [1, hidden_size].
            chosen: Of it.
            weights: Of the experts, [1, num_chosen]; written here.
            experts: Of the layer.
            gate: The kernels' name of the activation.
            out: What the sum is written to if it is made now.
        """
        gate_up = gate_up_of(experts)
        (pairs, blocks, _), arguments = self._pairs.gate_up(x.rows * chosen.features, experts, gate)
        q, scale = self._products.forms.int8(x)
        kernel = self._gate_ups[gate_up.format.name]
        if pairs * blocks <= self._blocks_at_once:
            kernel = self._gate_ups_of_two_blocks.get(gate_up.format.name, kernel)
        kernel.launch(
            (pairs, blocks + 1, 1),
            GATE_UP_THREADS,
            **arguments,
            logit_sums=chosen.sums,
            choice=chosen.rule,
            q=q,
            scale=scale,
            squares=x.squares,
            eps=x.eps,
        )
        later = UnmadeMix(
            *(out.arrays, out.rows, out.features),
            inner=arguments["out"],
            chosen=chosen,
            weights=weights,
            experts=experts,
        )
        return later if self._adds(later) else self.make(later)

    def make(self, mix: UnmadeMix) -> Activation:
        """Returns the sum."""
        out = Activation(
            *(mix.arrays, mix.rows, mix.features), f32=mix.arrays.float32(mix.rows, mix.features)
        )
        chosen, weights = i32_of(mix.chosen), f32_of(mix.weights)
        self._pairs.down(mix.inner, chosen, weights, mix.experts, f32_of(out))
        self._route.clear_logits(mix.chosen.sums)
        return out

    def add_and_defer(
        self, mix: UnmadeMix, residual: Activation, weight: Weight, eps: float
    ) -> NormLater:
        """Adds the sum to the residual, as `MixedGemvKernels.add_and_defer` does a product."""
        out = self._products.norm_later(residual, weight, eps)
        down = part_of(mix.experts.down).matrix
        q, scale = self._products.forms.int8(mix.inner)
        self._downs[down.format.name].launch(
            (mix.features // QUANT_BLOCK, 1, 1),
            self._threads(mix),
            weight=down.data,
            places=down.places,
            q=q,
            scale=scale,
            chosen=i32_of(mix.chosen),
            weights=f32_of(mix.weights),
            bias=optional_vector(mix.experts.down_bias, down.num_experts * down.out_features),
            expert_bytes=down.nbytes,
            num_chosen=mix.chosen.features,
            out_features=down.out_features,
            quant_blocks=down.quant_blocks,
            residual=f32_of(residual),
            norm_weight=vector_of(weight, mix.features),
            **out.parts(),
            logit_sums=mix.chosen.sums,
            logits=mix.chosen.sums.shape[0],
        )
        return out

    def _adds(self, mix: UnmadeMix) -> bool:
        """Returns whether a launch makes the sum and adds it to the residual."""
        kernel = self._downs.get(part_of(mix.experts.down).matrix.format.name)
        is_whole = mix.features % QUANT_BLOCK == 0
        return kernel is not None and is_whole and self._threads(mix) <= kernel.max_threads

    def _threads(self, mix: UnmadeMix) -> int:
        """Returns those of a block, so that sums are of the same parts as those of down alone."""
        matrix = part_of(mix.experts.down).matrix
        return TILES_AT_ONCE * self._pairs.down_threads(mix.rows, matrix)
