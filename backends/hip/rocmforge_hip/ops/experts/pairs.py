"""Experts for a few tokens: each pair of a token and one of its experts on its own.

Tokens are few if their pairs hardly share experts. The kernels work for any number, a few tokens at
a time, and read an expert again for each token that has chosen it.
"""

from __future__ import annotations

from typing import Any, Final

from rocmforge.models.blocks import Experts
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.driver import Dim3
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import experts as kernels
from rocmforge_hip.ops.activations import FEW_TOKENS, Activation, ActivationArrays
from rocmforge_hip.ops.linear.gemv import GEMV_OUTPUTS
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.operands import empty, f32_of, i32_of, optional_vector, part_of
from rocmforge_hip.weights.formats import FLOAT_FORMATS, Matrix, Weight, ceil_div
from rocmforge_hip.weights.products import Product

GATE_UP_THREADS: Final = 256
_MOST_DOWN_THREADS: Final = 512
_DOWN_THREADS: Final = 256
_FEWER_DOWN_THREADS: Final = 128
_MANY_ROWS: Final = 4
"""So many fill the device with smaller blocks, which are faster where rows are short."""
_SHORT_ROW: Final = 32  # quant blocks


def gate_up_of(experts: Experts[Weight]) -> Matrix:
    """Returns the matrix of gate and up, or of up alone."""
    matrix = part_of(experts.up).matrix
    assert experts.gate is None or part_of(experts.gate).matrix is matrix
    return matrix


def empty_mix(
    arena: ActivationArrays[DeviceArray], rows: int, experts: Experts[Weight]
) -> Activation:
    """Returns what the sums of so many tokens are to be written to, in float32.

    It is the step's delta, unless the result of a network beside them, which is, is to be added, or
    they are in a space of their own.
    """
    result = arena.product(Product.DELTA)
    others = experts.shared, experts.dense_post_norm, experts.latent_up
    if any(other is not None for other in others):
        assert arena.experts is not None
        assert arena.experts.mixed is not None
        result = arena.experts.mixed
    return empty(result, rows, part_of(experts.down).out_features, half=False)


def down_kernels(
    library: KernelLibrary, formats: frozenset[str], slices: int
) -> dict[str, Kernel[...]]:
    """Returns what multiplies pairs with one matrix of their expert each, by the stored type.

    Args:
        library: Where they are.
        formats: The stored types.
        slices: Of an activation that is multiplied as int8.
    """
    return {
        name: library.kernel(f"rf_experts_down_{name}", kernels.rf_experts_down_float)
        if name in FLOAT_FORMATS
        else library.kernel(f"rf_experts_down_{name}_s{slices}", kernels.rf_experts_down)
        for name in formats
    }


class PairKernels:
    """Launches them.

    Args:
        library: Where the kernels are.
        arena: The arrays of the activations; there are some of experts.
        products: Quantises activations.
        formats: Stored types of the experts' matrices.
    """

    def __init__(
        self,
        library: KernelLibrary,
        arena: ActivationArrays[DeviceArray],
        products: LinearKernels,
        formats: frozenset[str],
    ) -> None:
        assert arena.experts is not None
        self._arrays = arena.experts
        self._arena = arena
        self._products = products
        self._gate_ups = {
            name: library.kernel(f"rf_experts_gate_up_{name}", kernels.rf_experts_gate_up_float)
            if name in FLOAT_FORMATS
            else library.kernel(
                f"rf_experts_gate_up_{name}_s{products.slices}", kernels.rf_experts_gate_up
            )
            for name in formats
        }
        self._downs = down_kernels(library, formats, products.slices)

    def mix(
        self,
        x: Activation,
        chosen: Activation,
        weights: Activation,
        experts: Experts[Weight],
        gate: int,
    ) -> Activation:
        """Returns the sum of what its experts make of each token, weighted; see `Ops.experts`."""
        out = empty_mix(self._arena, x.rows, experts)
        few = FEW_TOKENS // self._products.slices
        if x.rows <= self._products.gemv_rows:
            self._mix_few(x, i32_of(chosen), f32_of(weights), experts, gate, f32_of(out))
            return out
        for start in range(0, x.rows, few):
            stop = min(start + few, x.rows)
            part = Activation(
                self._arrays.multiplied, stop - start, x.features, f32=f32_of(x).rows(start, stop)
            )
            places, factors, sums = (
                array.rows(start, stop) for array in (i32_of(chosen), f32_of(weights), f32_of(out))
            )
            self._mix_few(part, places, factors, experts, gate, sums)
        return out

    def _mix_few(
        self,
        x: Activation,
        chosen: DeviceArray,
        weights: DeviceArray,
        experts: Experts[Weight],
        gate: int,
        out: DeviceArray,
    ) -> None:
        gate_up = gate_up_of(experts)
        rows, num_chosen = chosen.shape
        grid, arguments = self.gate_up(rows * num_chosen, experts, gate)
        self._gate_ups[gate_up.format.name].launch(
            grid,
            GATE_UP_THREADS,
            **arguments | self._products.forms.multiplied(x, gate_up),
            chosen=chosen,
            rows=rows,
            num_chosen=num_chosen,
        )
        self.down(arguments["out"], chosen, weights, experts, out)

    def gate_up(
        self, pairs: int, experts: Experts[Weight], gate: int
    ) -> tuple[Dim3, dict[str, Any]]:
        """Returns the grid and the arguments of a product of so many pairs with gate and up.

        What it writes, `out`, is to be multiplied with down.
        """
        gate_up = gate_up_of(experts)
        inner = Activation(self._arrays.inner, pairs, gate_up.out_features)
        if part_of(experts.down).matrix.format.is_quantised:
            self._products.forms.give_int8(inner)
        else:
            inner.f32 = self._arrays.inner.float32(inner.rows, inner.features)
        columns = QUANT_BLOCK * (2 if experts.gate is None else 1)
        size = gate_up.num_experts * gate_up.out_features
        return (pairs, ceil_div(gate_up.out_features, columns), 1), {
            "weight": gate_up.data,
            "places": gate_up.places,
            "gate_bias": optional_vector(experts.gate_bias, size),
            "up_bias": optional_vector(experts.up_bias, size),
            "out": inner,
            "expert_bytes": gate_up.nbytes,
            "out_features": gate_up.out_features,
            "quant_blocks": gate_up.quant_blocks,
            "activation": gate,
        }

    def down(
        self,
        inner: Activation,
        chosen: DeviceArray,
        weights: DeviceArray,
        experts: Experts[Weight],
        out: DeviceArray,
    ) -> None:
        """Writes the weighted sums of what down makes of pairs, float32 [tokens, hidden_size]."""
        down = part_of(experts.down).matrix
        rows, num_chosen = chosen.shape
        kernel = self._downs[down.format.name]
        kernel.launch(
            (rows, down.stored_rows // GEMV_OUTPUTS, 1),
            self.down_threads(rows, down),
            weight=down.data,
            places=down.places,
            **self._products.forms.multiplied(inner, down),
            chosen=chosen,
            weights=weights,
            bias=optional_vector(experts.down_bias, down.num_experts * down.out_features),
            out=out,
            expert_bytes=down.nbytes,
            rows=rows,
            num_chosen=num_chosen,
            out_features=down.out_features,
            quant_blocks=down.quant_blocks,
        )

    def down_threads(self, rows: int, down: Matrix) -> int:
        """Returns the threads of a block of down for so many tokens."""
        most = self._downs[down.format.name].max_threads
        return min(_down_threads(rows, down.quant_blocks), most)


def _down_threads(rows: int, quant_blocks: int) -> int:
    """Returns them, if the kernel is compiled for as many."""
    is_short = quant_blocks <= _SHORT_ROW
    if rows == 1 and not is_short:
        return _MOST_DOWN_THREADS
    return _FEWER_DOWN_THREADS if rows >= _MANY_ROWS and is_short else _DOWN_THREADS
