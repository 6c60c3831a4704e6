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
from rocmforge_hip.ops.experts.routing import i32_of
from rocmforge_hip.ops.geometry import GEMM_ROWS, group_tile_rows
from rocmforge_hip.ops.linear import LinearKernels, f32_of, part_of, vector_of
from rocmforge_hip.weights.formats import Matrix, Weight, ceil_div, round_up

_MOST_THREADS: Final = 1024
_WAVES: Final = 64
"""Blocks are whole waves, of either size."""
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
        arrays = self._products.half(x), i32_of(chosen), f32_of(weights), f32_of(out)
        for start in range(0, x.rows, GROUPED_TOKENS):
            stop = min(start + GROUPED_TOKENS, x.rows)
            halves, choice, factors, sums = (array.rows(start, stop) for array in arrays)
            tile = self._sort(choice, part_of(experts.gate).matrix.num_experts)
            self._multiply_gate_up(halves, choice.shape, experts, gate, tile)
            self._multiply_down(choice.shape, experts, tile)
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
            min(round_up(pairs, _WAVES), _MOST_THREADS),
            chosen=chosen,
            tokens=self._arrays.tokens,
            places=self._arrays.places,
            tiles=self._arrays.tiles,
            pairs=pairs,
            num_chosen=num_chosen,
            tile_rows=tile,
        )
        return tile

    def _multiply_gate_up(
        self,
        x: DeviceArray,
        shape: tuple[int, ...],
        experts: Experts[Weight],
        gate: int,
        tile: int,
    ) -> None:
        """Multiplies rows of tokens with gate and up of their experts: shape [tokens, chosen]."""
        matrix = part_of(experts.gate).matrix
        assert part_of(experts.up).matrix is matrix, "gate and up are one matrix"
        kernel = self._gemms[matrix.format.name, tile]
        kernel.launch(
            _grid(shape, matrix, tile),
            kernel.max_threads,
            weight=matrix.data,
            x=x,
            tiles=self._arrays.tiles,
            sources=self._arrays.tokens,
            bias=_bias(experts.gate_bias, matrix),
            up_bias=_bias(experts.up_bias, matrix),
            out=None,
            out_half=self._arrays.inner,
            partial=None,
            expert_bytes=matrix.nbytes,
            rows=0,
            out_features=matrix.out_features,
            quant_blocks=matrix.quant_blocks,
            activation=gate,
            split_quant_blocks=matrix.quant_blocks,
        )

    def _multiply_down(self, shape: tuple[int, ...], experts: Experts[Weight], tile: int) -> None:
        """Multiplies what came of that with down."""
        matrix = part_of(experts.down).matrix
        kernel = self._gemms[matrix.format.name, tile]
        kernel.launch(
            _grid(shape, matrix, tile),
            kernel.max_threads,
            weight=matrix.data,
            x=self._arrays.inner,
            tiles=self._arrays.tiles,
            sources=None,
            bias=_bias(experts.down_bias, matrix),
            up_bias=None,
            out=self._arrays.products,
            out_half=None,
            partial=None,
            expert_bytes=matrix.nbytes,
            rows=0,
            out_features=matrix.out_features,
            quant_blocks=matrix.quant_blocks,
            activation=NOT_GATED,
            split_quant_blocks=matrix.quant_blocks,
        )


def _grid(shape: tuple[int, ...], matrix: Matrix, tile: int) -> tuple[int, int, int]:
    """Returns a grid with all tiles that so many pairs may make."""
    tokens, num_chosen = shape
    tiles = tokens * num_chosen // tile + matrix.num_experts
    return tiles, ceil_div(matrix.stored_rows, GEMM_COLUMNS), 1


def _bias(bias: Weight | None, matrix: Matrix) -> DeviceArray | None:
    return None if bias is None else vector_of(bias, matrix.num_experts * matrix.out_features)
