"""Layers with experts as launches of kernels: which of them choose, multiply and add."""

from __future__ import annotations

from collections.abc import Sequence

from rocmforge.models.blocks import Experts, FeedForward, SharedExpert
from rocmforge.models.config import ActivationFunction
from rocmforge.models.layer_config import ExpertsConfig
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation, ActivationArrays
from rocmforge_hip.ops.experts.beside import BesideKernels
from rocmforge_hip.ops.experts.deferred import DeferredExperts, may_choose_later
from rocmforge_hip.ops.experts.groups import GroupKernels
from rocmforge_hip.ops.experts.pair_sums import PairSums, UnmadePairs
from rocmforge_hip.ops.experts.pairs import PairKernels, empty_mix
from rocmforge_hip.ops.experts.routing import RouteKernels, UnmadeChoice, UnmadeSum
from rocmforge_hip.ops.experts.shared import SharedKernels
from rocmforge_hip.ops.linear.later import is_norm_later
from rocmforge_hip.ops.linear.products import GATES, LinearKernels
from rocmforge_hip.ops.norms import LayerNorms, RmsNorms
from rocmforge_hip.ops.operands import empty, part_of
from rocmforge_hip.ops.resources import Resources
from rocmforge_hip.ops.sums import Sums
from rocmforge_hip.weights.formats import Weight


class ExpertKernels:
    """The kernels of a model with experts.

    Args:
        resources: Of the model.
        products: Multiplies with dense matrices.
    """

    def __init__(self, resources: Resources, products: LinearKernels) -> None:
        library, arena = resources.library, resources.arena
        self.route = RouteKernels(
            *(library, resources.geometry, arena, resources.config.norm_eps),
            *(resources.rank, resources.hosted_routers),
        )
        of_experts = library, arena, products, resources.expert_formats
        self.pair_sums = PairSums(library, resources.config.norm_eps)
        self.pairs = PairKernels(*of_experts)
        self.groups = GroupKernels(*of_experts, resources.geometry, self.pair_sums)
        self.shared = SharedKernels(*of_experts, self.pairs)
        self.deferred = DeferredExperts(
            *(library, resources.geometry, products, self.pairs),
            *(self.route, resources.expert_formats),
        )
        self.beside = None
        if arena.experts is not None and arena.experts.mixed is not None:
            self.beside = BesideKernels(
                *(library, arena, products, self.pairs),
                *(resources.formats | resources.expert_formats, resources.config.norm_eps),
            )
        self.slices = products.slices
        self.geometry = resources.geometry


class ExpertLayers:
    """Launches them.

    Args:
        arena: The arrays of the activations; there are some of experts.
        norms: Of the model's kind.
        sums: Of the residual and what is added to it.
        kernels: What is launched.
    """

    def __init__(
        self,
        arena: ActivationArrays[DeviceArray],
        norms: RmsNorms | LayerNorms,
        sums: Sums,
        kernels: ExpertKernels,
    ) -> None:
        self._arena = arena
        self._norms = norms
        self._sums = sums
        self._kernels = kernels

    def add_norm_route(
        self,
        residual: Activation,
        delta: Activation,
        norms: Sequence[Weight],
        experts: Experts[Weight],
        rule: ExpertsConfig,
    ) -> tuple[Activation, list[Activation], tuple[Activation, Activation]]:
        """Does what `Ops.add_norm_route` says.

        Writes the sum to another place than the residual's, if there are few tokens.
        """
        assert self._arena.experts is not None
        rows, features = residual.rows, residual.features
        deferred, beside = self._kernels.deferred, self._kernels.beside
        route = self._kernels.route
        chooses = may_choose_later(delta, norms, experts, rule.num_experts) and (
            deferred.chooses(experts)
            or (beside is not None and beside.chooses(delta, rule.num_chosen, experts))
        )
        if chooses and not route.is_hosted(experts):
            sums = route.sums_of(experts)
            normed = self._sums.add_and_defer(residual, delta, norms[0], sums)
            assert normed is not None
            return residual, [normed], route.route_later(sums, experts, rule)
        places = self._arena.normed, self._arena.experts.normed
        outs = [
            self._sums.multiplied(empty(arrays, rows, features, half=False))
            for arrays, _ in zip(places, norms, strict=False)
            if arrays is not None
        ]
        wanted = list(zip(norms, outs, strict=True))
        if route.adds_and_routes(rows, features, rule):
            x, post_norm = self._sums.unnormed(delta)
            total, chosen = route.add_norm_route(residual, x, post_norm, wanted, experts, rule)
            return total, outs, chosen
        out, routed = self._sums.normed(residual), experts.router_norm or norms[0]
        self._sums.add_and_norm(residual, delta, routed, None, out)
        chosen = route.route(out, experts, rule)
        for weight, of_sum in wanted if experts.router_norm is not None else ():
            self._norms.norm(residual, weight, None, of_sum)
        return residual, outs, chosen

    def mix(
        self,
        x: Activation,
        chosen: Activation,
        weights: Activation,
        experts: Experts[Weight],
        activation: ActivationFunction,
    ) -> Activation:
        """Does what `Ops.experts` says."""
        kernels = self._kernels
        if isinstance(chosen, UnmadeChoice):
            assert is_norm_later(x)
            out = empty_mix(self._arena, x.rows, experts)
            return kernels.deferred.mix(x, chosen, weights, experts, GATES[activation], out)
        mixed = self._multiplying(x, chosen, experts).mix(
            x, chosen, weights, experts, GATES[activation]
        )
        return mixed if self._adds_and_norms(mixed) else self._sums.made(mixed)

    def _multiplying(
        self, x: Activation, chosen: Activation, experts: Experts[Weight]
    ) -> SharedKernels | GroupKernels | PairKernels:
        """Returns what is fastest for so many tokens."""
        kernels = self._kernels
        if kernels.shared.multiplies(x.rows, experts):
            return kernels.shared
        matrix = part_of(experts.down).matrix
        pairs = x.rows * (chosen.features - matrix.num_shared)
        num_experts = matrix.num_experts - matrix.num_shared
        grouped = kernels.geometry.groups_experts(x.rows, pairs, num_experts, kernels.slices)
        return kernels.groups if grouped else kernels.pairs

    def _adds_and_norms(self, mixed: Activation) -> bool:
        """Returns whether the launch that adds it to the residual and norms that adds it up."""
        return (
            isinstance(mixed, UnmadePairs)
            and isinstance(self._norms, RmsNorms)
            and mixed.arrays is self._arena.delta
            and self._kernels.pair_sums.adds_and_norms(mixed.rows, mixed.features)
        )

    def multiplies_beside(
        self,
        x: Activation,
        chosen: Activation,
        experts: Experts[Weight],
        network: FeedForward[Weight] | SharedExpert[Weight],
    ) -> bool:
        """Returns whether launches of experts multiply a network beside them, too."""
        beside = self._kernels.beside
        return beside is not None and beside.multiplies(x, chosen.features, experts, network)

    def mix_beside(
        self,
        inputs: tuple[Activation, Activation],
        chosen: tuple[Activation, Activation],
        experts: Experts[Weight],
        network: FeedForward[Weight] | SharedExpert[Weight],
        activation: ActivationFunction,
    ) -> tuple[Activation, Activation]:
        """Does what `Ops.experts_beside` says, in these launches."""
        assert self._kernels.beside is not None
        return self._kernels.beside.mix(inputs, chosen, experts, network, GATES[activation])

    def add_shared(
        self, mixed: Activation, shared: Activation, router: Weight | None
    ) -> Activation:
        """Does what `Ops.add_shared` says; what chose the experts has multiplied with the router.

        Writes the sum to the place of the shared expert's result, if it is made at all.
        """
        shared = self._sums.beside_experts(shared)
        return UnmadeSum(
            *(shared.arrays, shared.rows, shared.features),
            first=mixed,
            second=shared,
            shares=None if router is None else self._kernels.route.shares(shared.rows),
        )
