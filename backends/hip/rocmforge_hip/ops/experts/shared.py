"""Experts for some tokens: pairs with the same expert share what is read of it, up to eight.

On devices with kernels for that, for stored types that have some
(kernels/include/rf/experts/experts_shared.h).
"""

from __future__ import annotations

from typing import Final

from rocmforge.models.blocks import Experts
from rocmforge_hip.device.constants import MOST_SHARED_BLOCKS
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import experts as kernels
from rocmforge_hip.ops.activations import Activation, ActivationArrays
from rocmforge_hip.ops.experts.pair_sums import UnmadePairs
from rocmforge_hip.ops.experts.pairs import PairKernels, empty_mix, gate_up_of
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.operands import f32_of, i32_of, optional_vector, part_of
from rocmforge_hip.weights.formats import Weight, ceil_div

_THREADS: Final = 256
_LEAST_ROWS: Final = 3
_MOST_ROWS: Final = 32
_DOWN_ROWS: Final = 32, 64
"""Stored rows of a block of down; more are faster where there are blocks enough."""
_MANY_TOKENS: Final = 8
_LEAST_QUANT_BLOCKS: Final = 4


class SharedKernels:
    """Launches them.

    Args:
        library: Where the kernels are.
        arena: The arrays of the activations; there are some of experts.
        products: Has the int8 forms of activations.
        formats: Stored types of the experts' matrices.
        pairs: What else multiplies pairs, and knows the arguments.
    """

    def __init__(
        self,
        library: KernelLibrary,
        arena: ActivationArrays[DeviceArray],
        products: LinearKernels,
        formats: frozenset[str],
        pairs: PairKernels,
    ) -> None:
        assert arena.experts is not None
        self._arena, self._arrays = arena, arena.experts
        self._products, self._pairs = products, pairs
        self._gate_ups = library.available(
            {name: f"rf_experts_gate_up_shared_{name}" for name in formats},
            kernels.rf_experts_gate_up,
        )
        self._downs = {
            (name, rows): library.kernel(
                f"rf_experts_down_shared_{name}_m{rows}", kernels.rf_experts_down_shared
            )
            for name in self._gate_ups
            for rows in _DOWN_ROWS
        }

    def multiplies(self, rows: int, experts: Experts[Weight]) -> bool:
        """Returns whether there are kernels for it, and they are the fastest for so many tokens."""
        if experts.gate is None or self._products.slices > 1:
            return False
        return _LEAST_ROWS <= rows <= _MOST_ROWS and all(
            matrix.format.name in self._gate_ups
            and _LEAST_QUANT_BLOCKS <= matrix.quant_blocks <= MOST_SHARED_BLOCKS
            for matrix in (gate_up_of(experts), part_of(experts.down).matrix)
        )

    def mix(
        self,
        x: Activation,
        chosen: Activation,
        weights: Activation,
        experts: Experts[Weight],
        gate: int,
    ) -> UnmadePairs:
        """Returns the sum of what its experts make of each token, weighted, to be made later."""
        out = empty_mix(self._arena, x.rows, experts)
        gate_up, down = gate_up_of(experts), part_of(experts.down).matrix
        if x.rows > self._products.gemv_rows:
            x = Activation(self._arrays.multiplied, x.rows, x.features, f32=f32_of(x))
        pairs = x.rows * chosen.features
        grid, arguments = self._pairs.gate_up(pairs, experts, gate)
        self._gate_ups[gate_up.format.name].launch(
            grid,
            _THREADS,
            **arguments | self._products.forms.multiplied(x, gate_up),
            chosen=i32_of(chosen),
            rows=x.rows,
            num_chosen=chosen.features,
        )
        rows = _DOWN_ROWS[x.rows >= _MANY_TOKENS]
        self._downs[down.format.name, rows].launch(
            (pairs, ceil_div(down.out_features, rows), 1),
            _THREADS,
            weight=down.data,
            places=down.places,
            **self._products.forms.multiplied(arguments["out"], down),
            chosen=i32_of(chosen),
            bias=optional_vector(experts.down_bias, down.num_experts * down.out_features),
            out=self._arrays.groups.products,
            expert_bytes=down.nbytes,
            pairs=pairs,
            out_features=down.out_features,
            quant_blocks=down.quant_blocks,
        )
        return UnmadePairs(
            *(out.arrays, out.rows, out.features),
            products=self._arrays.groups.products,
            places=i32_of(chosen),
            weights=f32_of(weights),
            is_sorted=False,
        )
