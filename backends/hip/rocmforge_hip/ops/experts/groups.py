"""Experts for many tokens: those of an expert are one group, whose matrix is read once.

Gate and up are multiplied with the rows of tokens, down with what comes of that, and each token's
pairs are added up.
"""

from __future__ import annotations

from rocmforge.models.blocks import Experts
from rocmforge_hip.device.constants import NOT_GATED
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import GROUPED_TOKENS, Activation, ActivationArrays, Forms
from rocmforge_hip.ops.experts.grouped_products import GroupedProducts
from rocmforge_hip.ops.experts.pair_sums import PairSums, UnmadePairs
from rocmforge_hip.ops.experts.pairs import empty_mix, gate_up_of
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.operands import f32_of, i32_of, part_of
from rocmforge_hip.weights.formats import Weight


class GroupKernels:
    """Launches them.

    Args:
        library: Where the kernels are.
        arena: The arrays of the activations; there are some of experts.
        products: Makes halves of activations.
        formats: Stored types of the experts' matrices.
        geometry: For the device.
        sums: Adds up what experts made.
    """

    def __init__(
        self,
        library: KernelLibrary,
        arena: ActivationArrays[DeviceArray],
        products: LinearKernels,
        formats: frozenset[str],
        geometry: Geometry,
        sums: PairSums,
    ) -> None:
        assert arena.experts is not None
        self._arena = arena
        self._arrays = arena.experts.groups
        self._products = products
        self._grouped = GroupedProducts(
            library, geometry, formats, self._arrays.pairs, arena.experts.fetched
        )
        self._sums = sums

    def mix(
        self,
        x: Activation,
        chosen: Activation,
        weights: Activation,
        experts: Experts[Weight],
        gate: int,
    ) -> Activation:
        """Returns the sum of what its experts make of each token, weighted; see `Ops.experts`.

        That of as many tokens as are grouped at a time is left to be made later.
        """
        out = empty_mix(self._arena, x.rows, experts)
        gating = NOT_GATED if experts.gate is None else gate
        gate_up, down = gate_up_of(experts), part_of(experts.down).matrix
        arrays = self._products.forms.half(x), i32_of(chosen), f32_of(weights), f32_of(out)
        for start in range(0, x.rows, GROUPED_TOKENS):
            stop = min(start + GROUPED_TOKENS, x.rows)
            halves, choice, factors, sums = (array.rows(start, stop) for array in arrays)
            pairs = (stop - start) * chosen.features
            tile = self._grouped.sort(choice, pairs, chosen.features, gate_up, gating)
            self._grouped.multiply(
                pairs,
                gate_up,
                tile,
                halves,
                biases=(experts.gate_bias, experts.up_bias),
                gate=gating,
                out_half=self._arrays.inner,
            )
            if experts.gate is None:
                inner = self._arrays.inner.first(pairs, gate_up.out_features)
                squared = Activation(Forms(), pairs, gate_up.out_features, f16=inner)
                self._products.forms.squared_relu(squared)
            self._grouped.multiply(
                pairs,
                down,
                tile,
                self._arrays.inner,
                biases=(experts.down_bias, None),
                is_sorted=True,
                out=self._arrays.products,
            )
            made = UnmadePairs(
                *(out.arrays, stop - start, out.features),
                products=self._arrays.products,
                places=self._arrays.pairs.places,
                weights=factors,
                is_sorted=True,
            )
            if made.rows == x.rows:
                return made
            self._sums.add_up(made, sums)
        return out
