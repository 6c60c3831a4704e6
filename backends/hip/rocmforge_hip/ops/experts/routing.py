"""The experts of each token, and the one that all of them pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeGuard

from rocmforge.models.blocks import Experts
from rocmforge.models.layer_config import ExpertsConfig, RouterFunction
from rocmforge_hip.device.constants import ROUTE_SIGMOID, ROUTE_SOFTMAX, ROUTE_SOFTMAX_OF_CHOSEN
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import experts as kernels
from rocmforge_hip.kernels.experts import ExpertChoice
from rocmforge_hip.ops.activations import NORMED_TOKENS, Activation, ActivationArrays, Forms
from rocmforge_hip.ops.geometry import ROUTE_TILE, Geometry, whole_waves
from rocmforge_hip.ops.linear.later import RouterSums
from rocmforge_hip.ops.norms import norm_threads, sum_threads, without_norm
from rocmforge_hip.ops.operands import empty, f32_of, i32_of, optional_vector, part_of, vector_of
from rocmforge_hip.weights.formats import Vector, Weight, ceil_div

_FUNCTIONS: Final = MappingProxyType(
    {
        RouterFunction.SOFTMAX: ROUTE_SOFTMAX,
        RouterFunction.SIGMOID: ROUTE_SIGMOID,
        RouterFunction.SOFTMAX_OF_CHOSEN: ROUTE_SOFTMAX_OF_CHOSEN,
    }
)
"""The kernels' names of router functions."""
_FEW_TOKENS: Final = 2
"""So many have a block for each logit."""
_TILE: Final = 4
"""Tokens, and experts, of a block where there are more."""
_THREADS: Final = 256
_MOST_THREADS: Final = 512
"""Of a block that norms a row and multiplies it with a router."""
_NO_NORM: Final[tuple[None, Activation]] = None, Activation(Forms(), 0, 0)


@dataclass(slots=True, eq=False, kw_only=True)
class UnmadeChoice(Activation):
    """The experts of a row, which the product with them chooses."""

    rule: ExpertChoice
    sums: DeviceArray  # of logits, that are to be zeros before anybody adds to them again


@dataclass(slots=True, eq=False, kw_only=True)
class UnmadeSum(Activation):
    """A sum of `Ops.add_shared` that what adds it to the residual makes."""

    first: Activation
    second: Activation
    shares: DeviceArray | None  # float32 [T]: what the second counts; None: 1
    post_norm: Weight | None = None  # what is added is the norm of the sum


class RouteKernels:
    """Launches them: activations as `Ops` describes them, float32 throughout.

    Args:
        library: Where the kernels are.
        geometry: For the device.
        arena: The arrays of the activations; there are some of experts.
        eps: Of the norm before a router.
        rank: Of this device among those that share the experts, as many each, in their order.
        hosted: The routers of layers whose experts are hosted. Their choices stay apart, one layer
            behind the other, as the host asks for them after the step.
    """

    def __init__(
        self,
        library: KernelLibrary,
        geometry: Geometry,
        arena: ActivationArrays[DeviceArray],
        eps: float,
        rank: int,
        hosted: Sequence[Weight] = (),
    ) -> None:
        self._geometry = geometry
        self._rank = rank
        self._hosted = {router: number for number, router in enumerate(hosted)}
        assert arena.experts is not None
        assert arena.residual is not None
        self._arrays = arena.experts
        self._residual = arena.residual
        assert arena.residual.f32 is not None
        self._features = arena.residual.f32.shape[1]
        self._eps = eps
        self._logits = library.kernel("rf_route_logits", kernels.rf_route_logits)
        self._gemm = library.kernel("rf_route_gemm", kernels.rf_route_gemm)
        self._choose = library.kernel("rf_route_choose", kernels.rf_route_choose)
        self._norm_logits = library.kernel("rf_add_rms_norm_logits", kernels.rf_add_rms_norm_logits)
        self._norm_route = library.kernel("rf_add_rms_norm_route", kernels.rf_add_rms_norm_route)
        self._clear_logits = library.kernel("rf_clear_logits", kernels.rf_clear_logits)
        self._add = library.kernel("rf_add_shared", kernels.rf_add_shared)
        self._add_norm = library.kernel("rf_add_shared_rms_norm", kernels.rf_add_shared_rms_norm)

    def adds_and_routes(self, tokens: int, features: int, rule: ExpertsConfig) -> bool:
        """Returns whether `add_norm_route` takes so many tokens, and as wide ones."""
        threads = _norm_route_threads(features, rule)
        return tokens <= NORMED_TOKENS and threads <= self._norm_route.max_threads

    def add_norm_route(
        self,
        residual: Activation,
        delta: Activation,
        post_norm: Weight | None,
        norms: Sequence[tuple[Weight, Activation]],
        experts: Experts[Weight],
        rule: ExpertsConfig,
    ) -> tuple[Activation, tuple[Activation, Activation]]:
        """Does what `Ops.add_norm_route` says for few tokens, whose norm is not waited for.

        Args:
            residual: [tokens, hidden_size].
            delta: [tokens, hidden_size].
            post_norm: The norm of delta is added.
            norms: Of the sum: their weights, and where they are written.
            experts: See there.
            rule: See there.

        Returns:
            The sum and each token's experts and their weights.
        """
        rows, features, num_logits = residual.rows, residual.features, self._num_logits(experts)
        threads = _norm_route_threads(features, rule)
        # Every thread block reads the residual, so that the sum goes elsewhere, and comes back in
        # the next layer.
        total = self._residual.float32(rows, features)
        if f32_of(residual).address == total.address:
            total = self._arrays.total.float32(rows, features)
        weight, out = norms[0]
        other_weight, other = norms[1] if len(norms) > 1 else _NO_NORM
        normed: dict[str, Any] = {
            "delta": f32_of(delta),
            "residual": f32_of(residual),
            "post_weight": optional_vector(post_norm, features),
            "weight": vector_of(weight, features),
            "other_weight": optional_vector(other_weight, features),
            "router_weight": vector_of(experts.router_norm or weight, features),
            "router": vector_of(experts.router, num_logits * features),
            "total": total,
            "logits": self._arrays.logits.first(rows, num_logits),
            "out": out,
            "other": other,
            "tokens": rows,
            "hidden_size": features,
            "eps": self._eps,
        }
        added = Activation(self._residual, rows, features, f32=total)
        if rows > _FEW_TOKENS:
            grid = _TILE + ceil_div(num_logits, _TILE), ceil_div(rows, _TILE), 1
            self._norm_logits.launch(grid, threads, **normed, experts=num_logits)
            return added, self._chosen(rows, experts, rule)
        chosen, weights = self._choice(rows, experts, rule)
        self._norm_route.launch(
            (1 + num_logits, rows, 1),
            threads,
            **normed,
            arrived=self._arrays.arrived,
            choice=self._expert_choice(rule, experts, chosen, weights),
        )
        return added, (chosen, weights)

    def is_hosted(self, experts: Experts[Weight]) -> bool:
        """Returns whether these are fetched when they are chosen."""
        return experts.router in self._hosted

    def sums_of(self, experts: Experts[Weight]) -> RouterSums:
        """Returns what the logits of a row are made of."""
        num_logits = self._num_logits(experts)
        return RouterSums(
            router=vector_of(experts.router, num_logits * self._features),
            logit_sums=self._arrays.logit_sums.first(num_logits),
        )

    def clear_logits(self, sums: DeviceArray) -> None:
        """Makes zeros of sums of logits."""
        self._clear_logits.launch((1, 1, 1), _THREADS, sums=sums, count=sums.shape[0])

    def route_later(
        self, sums: RouterSums, experts: Experts[Weight], rule: ExpertsConfig
    ) -> tuple[UnmadeChoice, Activation]:
        """Returns the experts of a row, to be chosen where they are multiplied with.

        Args:
            sums: Of its logits.
            experts: Of the layer.
            rule: How they are chosen.
        """
        chosen, weights = self._choice(1, experts, rule)
        choice = UnmadeChoice(
            *(chosen.arrays, chosen.rows, chosen.features),
            i32=chosen.i32,
            rule=self._expert_choice(rule, experts, chosen, weights),
            sums=sums.logit_sums,
        )
        return choice, weights

    def route(
        self, x: Activation, experts: Experts[Weight], rule: ExpertsConfig
    ) -> tuple[Activation, Activation]:
        """Returns the experts of each token, in int32, and their weights."""
        rows, num_logits = x.rows, self._num_logits(experts)
        kernel, splits = self._logits, 1
        tiles = ceil_div(num_logits, _TILE), ceil_div(rows, _TILE)
        if self._geometry.routes_by_gemm(rows * num_logits):
            kernel = self._gemm
            tiles = self._geometry.route_tiles(num_logits), ceil_div(rows, ROUTE_TILE)
            splits = self._geometry.route_splits(rows, num_logits, x.features)
        kernel.launch(
            (*tiles, splits),
            _THREADS,
            x=f32_of(x),
            router=vector_of(experts.router, num_logits * x.features),
            logits=self._arrays.logits.first(splits * rows, num_logits),
            tokens=rows,
            experts=num_logits,
            features=x.features,
        )
        return self._chosen(rows, experts, rule, splits)

    def _chosen(
        self, rows: int, experts: Experts[Weight], rule: ExpertsConfig, splits: int = 1
    ) -> tuple[Activation, Activation]:
        """Chooses by the logits, of which there are parts to be added up."""
        chosen, weights = self._choice(rows, experts, rule)
        self._choose.launch(
            (rows, 1, 1),
            whole_waves(rule.num_experts),
            logits=self._arrays.logits.first(splits * rows, self._num_logits(experts)),
            choice=self._expert_choice(rule, experts, chosen, weights),
            splits=splits,
        )
        return chosen, weights

    def _choice(
        self, rows: int, experts: Experts[Weight], rule: ExpertsConfig
    ) -> tuple[Activation, Activation]:
        """Returns the places of tokens' experts and their weights."""
        count, arrays = rule.num_chosen + _num_shared(experts), self._arrays
        first = self._hosted.get(experts.router, 0) * rows
        of_layers = arrays.chosen.int32(first + rows, count)
        chosen = Activation(arrays.chosen, rows, count, i32=of_layers.rows(first, first + rows))
        return chosen, empty(arrays.weights, rows, count, half=False)

    def shares(self, rows: int) -> DeviceArray:
        """Returns what a network with a router of its own counts for each token, float32 [T]."""
        return self._arrays.shares.first(rows)

    def add_shared(self, mixed: Activation, shared: Activation, shares: DeviceArray | None) -> None:
        """Adds what `Ops.add_shared` says to the float32 of `shared`, whose rows count `shares`."""
        self._add.launch(
            (shared.rows, 1, 1),
            _THREADS,
            mixed=f32_of(mixed),
            shared=f32_of(shared),
            shares=shares,
            features=shared.features,
        )

    def adds_and_norms(self, weight: Weight | None, features: int) -> TypeGuard[Weight]:
        """Returns whether a launch adds such a sum to the residual and norms that."""
        threads = norm_threads(features)
        return weight is not None and threads <= self._add_norm.max_threads

    def add_and_norm(
        self,
        residual: Activation,
        total: UnmadeSum,
        weight: Weight,
        scale: Weight | None,
        out: Activation,
    ) -> None:
        """Adds the sum to the residual and norms that, as `RmsNorms.add_norm` does."""
        rows, features = residual.rows, residual.features
        (first, first_norm), (second, second_norm) = map(without_norm, (total.first, total.second))
        self._add_norm.launch(
            (rows, 1, 1),
            norm_threads(features),
            mixed=f32_of(first),
            mixed_weight=optional_vector(first_norm, features),
            shared=f32_of(second),
            shared_weight=optional_vector(second_norm, features),
            shares=total.shares,
            residual=f32_of(residual),
            post_weight=optional_vector(total.post_norm, features),
            scale=optional_vector(scale, 1),
            weight=vector_of(weight, features),
            out=out,
            hidden_size=features,
            eps=self._eps,
        )

    def _num_logits(self, experts: Experts[Weight]) -> int:
        """Returns the rows of the router: one more for a shared expert that has one of its own."""
        assert isinstance(experts.router, Vector), "a vector is needed here"
        return experts.router.data.shape[0] // self._features

    def _expert_choice(
        self,
        rule: ExpertsConfig,
        experts: Experts[Weight],
        chosen: Activation,
        weights: Activation,
    ) -> ExpertChoice:
        """Returns how kernels choose the experts."""
        own, num_shared = part_of(experts.down).matrix.num_experts, _num_shared(experts)
        weighs_shared = self._num_logits(experts) - rule.num_experts
        return ExpertChoice(
            bias=optional_vector(experts.router_bias, rule.num_experts),
            selection_bias=optional_vector(experts.selection_bias, rule.num_experts),
            weight_scale=optional_vector(experts.weight_scale, rule.num_experts),
            chosen=i32_of(chosen),
            weights=f32_of(weights),
            shares=self.shares(weights.rows) if weighs_shared and not num_shared else None,
            experts=rule.num_experts,
            num_chosen=rule.num_chosen,
            function=_FUNCTIONS[rule.router],
            groups=rule.num_groups,
            kept_groups=rule.num_chosen_groups,
            normalised=rule.normalised,
            factor=rule.scale,
            first_own=self._rank * own - num_shared,
            num_own=own,
            num_shared=num_shared,
            weighs_shared=weighs_shared,
        )


def _num_shared(experts: Experts[Weight]) -> int:
    """Returns how many of a layer's experts are for every token."""
    return part_of(experts.down).matrix.num_shared


def _norm_route_threads(features: int, rule: ExpertsConfig) -> int:
    """Returns the threads of a block that norms a row and chooses its experts."""
    threads = norm_threads(features), sum_threads(features, _MOST_THREADS)
    return max(*threads, whole_waves(rule.num_experts))
