"""The experts of each token, and the one that all of them pass."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from rocmforge.models.config import ExpertsConfig, RouterFunction
from rocmforge_hip.device.constants import ROUTE_SIGMOID, ROUTE_SOFTMAX, ROUTE_SOFTMAX_OF_CHOSEN
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import experts as kernels
from rocmforge_hip.ops.activations import Activation, ExpertArrays
from rocmforge_hip.ops.geometry import whole_waves
from rocmforge_hip.ops.linear import empty, f32_of, i32_of, optional_vector, vector_of
from rocmforge_hip.weights.formats import Weight, ceil_div

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


class RouteKernels:
    """Launches them: activations as `Ops` describes them, float32 throughout.

    Args:
        library: Where the kernels are.
        arrays: Of the experts.
    """

    def __init__(self, library: KernelLibrary, arrays: ExpertArrays[DeviceArray]) -> None:
        self._arrays = arrays
        self._logits = {
            name: library.kernel(f"rf_route_logits_{name}", kernels.rf_route_logits)
            for name in ("one", "several")
        }
        self._choose = library.kernel("rf_route_choose", kernels.rf_route_choose)
        self._add = library.kernel("rf_add_shared", kernels.rf_add_shared)

    def route(
        self,
        x: Activation,
        router: Weight,
        biases: tuple[Weight | None, Weight | None],
        rule: ExpertsConfig,
    ) -> tuple[Activation, Activation]:
        """Returns the experts of each token, in int32, and their weights; see `Ops.route`."""
        rows, experts, arrays = x.rows, rule.num_experts, self._arrays
        chosen = Activation(
            arrays.chosen,
            rows,
            rule.num_chosen,
            i32=arrays.chosen.int32(rows, rule.num_chosen),
        )
        weights = empty(arrays.weights, rows, rule.num_chosen, half=False)
        logits = arrays.logits.first(rows, experts)
        name, tile = ("one", 1) if rows <= _FEW_TOKENS else ("several", _TILE)
        self._logits[name].launch(
            (ceil_div(experts, tile), ceil_div(rows, tile), 1),
            _THREADS,
            x=f32_of(x),
            router=vector_of(router, experts * x.features),
            logits=logits,
            tokens=rows,
            experts=experts,
            features=x.features,
        )
        bias, selection_bias = (optional_vector(each, experts) for each in biases)
        self._choose.launch(
            (rows, 1, 1),
            whole_waves(experts),
            logits=logits,
            bias=bias,
            selection_bias=selection_bias,
            chosen=i32_of(chosen),
            weights=f32_of(weights),
            experts=experts,
            num_chosen=rule.num_chosen,
            function=_FUNCTIONS[rule.router],
            groups=rule.num_groups,
            kept_groups=rule.num_chosen_groups,
            normalised=int(rule.normalised),
            scale=rule.scale,
        )
        return chosen, weights

    def add_shared(
        self, mixed: Activation, shared: Activation, x: Activation, router: Weight | None
    ) -> None:
        """Adds what `Ops.add_shared` says to the float32 of `shared`."""
        self._add.launch(
            (x.rows, 1, 1),
            _THREADS,
            mixed=f32_of(mixed),
            shared=f32_of(shared),
            x=f32_of(x),
            router=optional_vector(router, x.features),
            features=x.features,
        )
