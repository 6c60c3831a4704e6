"""Experts for many tokens: those of an expert are one group, whose matrix is read once.

Pairs of a token and one of its experts are sorted by expert on the device (kernels/include/rf/
groups.h), gate and up are multiplied with the rows of tokens, down with what comes of that, and
each token adds up its pairs. The host knows only how many pairs there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rocmforge_hip.device.constants import GEMM_COLUMNS, NOT_GATED
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import ArraySpec, DeviceArray, spec
from rocmforge_hip.kernels import groups as kernels
from rocmforge_hip.kernels import products
from rocmforge_hip.ops.geometry import GEMM_ROWS, group_tile_rows
from rocmforge_hip.weights.formats import Matrix, ceil_div, round_up

MOST_GROUPED: Final = 4096
"""Tokens that are grouped at a time; of more, as many after each other."""
_MOST_THREADS: Final = 1024
_WAVES: Final = 64
"""Blocks are whole waves, of either size."""
_MIX_THREADS: Final = 256
_MIX_COLUMNS: Final = 4 * _MIX_THREADS

X = TypeVar("X")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupArrays(Generic[X]):
    """Every array of P pairs that is written on the way."""

    tokens: X  # int32 [P], sorted: the token of each pair
    places: X  # int32 [P], where each pair went
    tiles: X  # int32 [P / smallest tile + num_experts, 4]
    inner: X  # float16 [P, intermediate_size], sorted
    products: X  # float32 [P, hidden_size], sorted


def plan_groups(
    tokens: int, num_chosen: int, num_experts: int, hidden_size: int, intermediate_size: int
) -> GroupArrays[ArraySpec]:
    """Returns the arrays for steps of so many tokens."""
    pairs = min(tokens, MOST_GROUPED) * num_chosen
    return GroupArrays(
        tokens=spec((pairs,), "i4"),
        places=spec((pairs,), "i4"),
        tiles=spec((pairs // GEMM_ROWS[0] + num_experts, 4), "i4"),
        inner=spec((pairs, intermediate_size), "f2"),
        products=spec((pairs, hidden_size), "f4"),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertMatrices:
    """The matrices of a layer's experts, each with biases [num_experts * out_features] or None."""

    num_experts: int
    gate_up: Matrix  # of one expert; the others follow
    down: Matrix
    gate_bias: DeviceArray | None
    up_bias: DeviceArray | None
    down_bias: DeviceArray | None


class GroupKernels:
    """Launches them.

    Args:
        library: Where the kernels are.
        arrays: For the largest step.
        formats: Stored types of the matrices.
    """

    def __init__(
        self, library: KernelLibrary, arrays: GroupArrays[DeviceArray], formats: frozenset[str]
    ) -> None:
        self._arrays = arrays
        self._group = library.kernel("rf_group_experts", kernels.rf_group_experts)
        self._mix = library.kernel("rf_mix_experts", kernels.rf_mix_experts)
        self._gemms = {
            (name, tile): library.kernel(f"rf_gemm_{name}_m{tile}", products.rf_gemm)
            for name in formats
            for tile in GEMM_ROWS
        }

    def mix(
        self,
        x: DeviceArray,
        chosen: DeviceArray,
        weights: DeviceArray,
        experts: ExpertMatrices,
        gate: int,
        out: DeviceArray,
    ) -> None:
        """Writes the weighted sum of what its experts make of each token.

        Args:
            x: float16 [T, hidden_size].
            chosen: int32 [T, num_chosen].
            weights: float32 [T, num_chosen].
            experts: Whose matrices are multiplied with.
            gate: The activation of kernels/include/rf/gate.h.
            out: float32 [T, hidden_size].
        """
        for start in range(0, x.shape[0], MOST_GROUPED):
            stop = min(start + MOST_GROUPED, x.shape[0])
            x_part, chosen_part, weights_part, out_part = (
                array.rows(start, stop) for array in (x, chosen, weights, out)
            )
            self._mix_some(x_part, chosen_part, weights_part, out_part, experts, gate)

    def _mix_some(
        self,
        x: DeviceArray,
        chosen: DeviceArray,
        weights: DeviceArray,
        out: DeviceArray,
        experts: ExpertMatrices,
        gate: int,
    ) -> None:
        tokens, num_chosen = chosen.shape
        pairs, arrays = tokens * num_chosen, self._arrays
        tile = group_tile_rows(pairs, experts.num_experts)
        self._group.launch(
            (experts.num_experts, 1, 1),
            min(round_up(pairs, _WAVES), _MOST_THREADS),
            chosen=chosen,
            tokens=arrays.tokens,
            places=arrays.places,
            tiles=arrays.tiles,
            pairs=pairs,
            num_chosen=num_chosen,
            tile_rows=tile,
        )
        tiles = pairs // tile + experts.num_experts
        gate_up, down = experts.gate_up, experts.down
        self._gemms[gate_up.format.name, tile].launch(
            (tiles, ceil_div(gate_up.stored_rows, GEMM_COLUMNS), 1),
            self._gemms[gate_up.format.name, tile].max_threads,
            weight=gate_up.data,
            x=x,
            tiles=arrays.tiles,
            sources=arrays.tokens,
            bias=experts.gate_bias,
            up_bias=experts.up_bias,
            out=None,
            out_half=arrays.inner,
            partial=None,
            expert_bytes=_bytes_of(gate_up),
            rows=pairs,
            out_features=gate_up.out_features,
            quant_blocks=gate_up.quant_blocks,
            activation=gate,
            split_quant_blocks=gate_up.quant_blocks,
        )
        self._gemms[down.format.name, tile].launch(
            (tiles, ceil_div(down.stored_rows, GEMM_COLUMNS), 1),
            self._gemms[down.format.name, tile].max_threads,
            weight=down.data,
            x=arrays.inner,
            tiles=arrays.tiles,
            sources=None,
            bias=experts.down_bias,
            up_bias=None,
            out=arrays.products,
            out_half=None,
            partial=None,
            expert_bytes=_bytes_of(down),
            rows=pairs,
            out_features=down.out_features,
            quant_blocks=down.quant_blocks,
            activation=NOT_GATED,
            split_quant_blocks=down.quant_blocks,
        )
        self._mix.launch(
            (ceil_div(down.out_features, _MIX_COLUMNS), tokens, 1),
            _MIX_THREADS,
            y=arrays.products,
            places=arrays.places,
            weights=weights,
            out=out,
            num_chosen=num_chosen,
            hidden_size=down.out_features,
        )


def _bytes_of(matrix: Matrix) -> int:
    """Returns the bytes of an expert's matrix."""
    return matrix.stored_rows * matrix.format.row_bytes(matrix.in_features)
