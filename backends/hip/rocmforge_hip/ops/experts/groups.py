"""Experts for many tokens: those of an expert are one group, whose matrix is read once.

Pairs of a token and one of its experts are sorted by expert on the device (kernels/include/rf/
groups.h), gate and up are multiplied with the rows of tokens, down with what comes of that, and
each token adds up its pairs. The host knows only how many pairs there are.
"""

from __future__ import annotations

from typing import Final

from rocmforge.models.blocks import Experts
from rocmforge_hip.device.constants import GEMM_COLUMNS, NOT_GATED
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import groups as kernels
from rocmforge_hip.kernels import products as product_kernels
from rocmforge_hip.ops.activations import GROUPED_TOKENS, Activation, ActivationArrays
from rocmforge_hip.ops.experts.pairs import empty_mix
from rocmforge_hip.ops.geometry import GEMM_ROWS, group_tile_rows, whole_waves
from rocmforge_hip.ops.linear import LinearKernels, f32_of, i32_of, optional_vector, part_of
from rocmforge_hip.weights.formats import Matrix, Weight, ceil_div

_MOST_THREADS: Final = 1024
_MIX_THREADS: Final = 256
_MIX_COLUMNS: Final = 4 * _MIX_THREADS


class GroupKernels:
    """Launches them.

    Args:
        library: Where the kernels are.
        arena: The arrays of the activations; there are some of experts.
        products: Makes halves of activations.
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
        self._arena = arena
        self._arrays = arena.experts.groups
        self._products = products
        self._group = library.kernel("rf_group_experts", kernels.rf_group_experts)
        self._mix = library.kernel("rf_mix_experts", kernels.rf_mix_experts)
        self._gemms = {
            (name, tile): library.kernel(f"rf_gemm_{name}_m{tile}", product_kernels.rf_gemm)
            for name in formats
            for tile in GEMM_ROWS
        }

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
        gate_up, down = part_of(experts.gate).matrix, part_of(experts.down).matrix
        assert part_of(experts.up).matrix is gate_up, "gate and up are one matrix"
        arrays = self._products.half(x), i32_of(chosen), f32_of(weights), f32_of(out)
        for start in range(0, x.rows, GROUPED_TOKENS):
            stop = min(start + GROUPED_TOKENS, x.rows)
            halves, choice, factors, sums = (array.rows(start, stop) for array in arrays)
            tile = self._sort(choice, gate_up.num_experts)
            self._multiply(
                choice.shape,
                gate_up,
                tile,
                biases=(experts.gate_bias, experts.up_bias),
                gate=gate,
                x=halves,
                sources=self._arrays.tokens,
                out_half=self._arrays.inner,
            )
            self._multiply(
                choice.shape,
                down,
                tile,
                biases=(experts.down_bias, None),
                x=self._arrays.inner,
                out=self._arrays.products,
            )
            self._mix.launch(
                (ceil_div(x.features, _MIX_COLUMNS), stop - start, 1),
                _MIX_THREADS,
                y=self._arrays.products,
                places=self._arrays.places,
                weights=factors,
                out=sums,
                num_chosen=chosen.features,
                hidden_size=out.features,
            )
        return out

    def _sort(self, chosen: DeviceArray, num_experts: int) -> int:
        """Sorts the pairs of [tokens, num_chosen] by expert. Returns the rows of their tiles."""
        tokens, num_chosen = chosen.shape
        pairs = tokens * num_chosen
        tile = group_tile_rows(pairs, num_experts)
        self._group.launch(
            (num_experts, 1, 1),
            min(whole_waves(pairs), _MOST_THREADS),
            chosen=chosen,
            tokens=self._arrays.tokens,
            places=self._arrays.places,
            tiles=self._arrays.tiles,
            pairs=pairs,
            num_chosen=num_chosen,
            tile_rows=tile,
        )
        return tile

    def _multiply(
        self,
        shape: tuple[int, ...],
        matrix: Matrix,
        tile: int,
        *,
        biases: tuple[Weight | None, Weight | None],
        gate: int = NOT_GATED,
        x: DeviceArray,
        sources: DeviceArray | None = None,
        out: DeviceArray | None = None,
        out_half: DeviceArray | None = None,
    ) -> None:
        """Multiplies a row for each pair of [tokens, num_chosen] with the matrix of its expert.

        `sources` says which row of x a pair has; without it, x is sorted as the pairs are.
        """
        kernel = self._gemms[matrix.format.name, tile]
        length = matrix.num_experts * matrix.out_features
        bias, up_bias = (optional_vector(each, length) for each in biases)
        kernel.launch(
            _grid(shape, matrix, tile),
            kernel.max_threads,
            weight=matrix.data,
            x=x,
            tiles=self._arrays.tiles,
            sources=sources,
            bias=bias,
            up_bias=up_bias,
            out=out,
            out_half=out_half,
            partial=None,
            expert_bytes=matrix.nbytes,
            rows=0,
            out_features=matrix.out_features,
            quant_blocks=matrix.quant_blocks,
            activation=gate,
            split_quant_blocks=matrix.quant_blocks,
        )


def _grid(shape: tuple[int, ...], matrix: Matrix, tile: int) -> tuple[int, int, int]:
    """Returns a grid with all tiles that so many pairs may make."""
    tokens, num_chosen = shape
    tiles = tokens * num_chosen // tile + matrix.num_experts
    return tiles, ceil_div(matrix.stored_rows, GEMM_COLUMNS), 1
