"""Products of rows with the matrices of their experts, in groups: a matrix is read once.

Pairs of a row and an expert are sorted by expert on the device (rf/experts/groups.h) into
tiles of one expert each. The host knows only how many pairs there are.
"""

from __future__ import annotations

from typing import Any, Final

from rocmforge_hip.device.constants import (
    GATED_QUANT_BLOCKS,
    GATED_ROWS,
    GEMM_COLUMNS,
    MOST_GROUPS,
    NOT_GATED,
    SHARE_ROUNDS,
    SHORT_QUANT_BLOCKS,
)
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import groups as kernels
from rocmforge_hip.kernels import products as product_kernels
from rocmforge_hip.ops.activations import FetchedExperts, SortedPairs
from rocmforge_hip.ops.geometry import GEMM_ROWS, Geometry, whole_waves
from rocmforge_hip.ops.operands import optional_vector
from rocmforge_hip.weights.formats import Matrix, Weight, ceil_div

_MOST_THREADS: Final = 1024
_SHORT_ROWS: Final = (GATED_ROWS, 64)
"""Tiles of which rows of up to SHORT_QUANT_BLOCKS stay in LDS."""
_HELD_THREADS: Final = 512
_FETCH_THREADS: Final = 256
_FETCH_PARTS: Final = 16
_FETCHED_PAIRS: Final = 32
"""Pairs of an expert, if each has as many, from which on its matrix is read several times."""


class GroupedProducts:
    """Launches them.

    Args:
        library: Where the kernels are.
        geometry: For the device.
        formats: Stored types of the matrices.
        sorted_pairs: The arrays that say which pairs are in which tile.
        fetched: Room for hosted experts that are read several times; None if there are none.
    """

    def __init__(
        self,
        library: KernelLibrary,
        geometry: Geometry,
        formats: frozenset[str],
        sorted_pairs: SortedPairs[DeviceArray],
        fetched: FetchedExperts[DeviceArray] | None = None,
    ) -> None:
        self._geometry = geometry
        self._sorted = sorted_pairs
        self._fetched = fetched
        self._fetch = library.kernel("rf_fetch_experts", kernels.rf_fetch_experts)
        self._group = library.kernel("rf_group_experts", kernels.rf_group_experts)
        self._gemms = {
            (name, tile): library.kernel(f"rf_gemm_{name}_m{tile}", product_kernels.rf_gemm)
            for name in formats
            for tile in GEMM_ROWS
        }
        self._of_short_rows = library.available(
            {name: f"rf_experts_gemm_{name}" for name in formats}, product_kernels.rf_experts_gemm
        )
        self._of_gated_rows = library.available(
            {name: f"rf_experts_gated_gemm_{name}" for name in formats},
            product_kernels.rf_experts_gated_gemm,
        )

    def sort(
        self,
        chosen: DeviceArray,
        pairs: int,
        num_chosen: int,
        matrix: Matrix,
        gate: int = NOT_GATED,
    ) -> int:
        """Sorts pairs by expert. Returns the rows of their tiles.

        Args:
            chosen: int32 [pairs], the expert of each: those of a row are next to each other.
            pairs: How many.
            num_chosen: Pairs of a row.
            matrix: What they are multiplied with first.
            gate: How gate and up become one number then, if the matrix has both.
        """
        assert matrix.num_experts <= MOST_GROUPS
        holds_gated = (
            gate != NOT_GATED
            and matrix.format.name in self._of_gated_rows
            and matrix.quant_blocks <= GATED_QUANT_BLOCKS
        )
        tile = self._geometry.group_tile_rows(pairs, matrix.num_experts, holds_gated=holds_gated)
        self._group.launch(
            (matrix.num_experts, 1, 1),
            min(whole_waves(pairs), _MOST_THREADS),
            chosen=chosen,
            tokens=self._sorted.rows,
            places=self._sorted.places,
            tiles=self._sorted.tiles,
            pairs=pairs,
            num_chosen=num_chosen,
            tile_rows=tile,
        )
        return tile

    def multiply(
        self,
        pairs: int,
        matrix: Matrix,
        tile: int,
        x: DeviceArray,
        *,
        biases: tuple[Weight | None, Weight | None] = (None, None),
        gate: int = NOT_GATED,
        is_sorted: bool = False,
        out: DeviceArray | None = None,
        out_half: DeviceArray | None = None,
    ) -> None:
        """Multiplies the row of each pair that was sorted with the matrix of its expert.

        Args:
            pairs: How many.
            matrix: All experts' [out_features, in_features].
            tile: What `sort` returned.
            x: float16 [rows, in_features], or [pairs, in_features] if they are sorted as the pairs.
            biases: Added to what a row gives; the second to its product with up.
            gate: How gate and up become one number, if the matrix has both.
            is_sorted: Whether rows of x are.
            out: float32 [pairs, out_features], sorted.
            out_half: float16 of this shape; one of both is written.
        """
        length = matrix.num_experts * matrix.out_features
        bias, up_bias = (optional_vector(each, length) for each in biases)
        tiles = pairs // tile + matrix.num_experts  # as many as so many pairs may make
        places = self._places(pairs, matrix, tile)
        sources = None if is_sorted else self._sorted.rows
        arguments: dict[str, Any] = {
            "weight": matrix.data,
            "places": places,
            "x": x,
            "tiles": self._sorted.tiles,
            "sources": sources,
            "bias": bias,
            "expert_bytes": matrix.nbytes,
            "out_features": matrix.out_features,
            "quant_blocks": matrix.quant_blocks,
        }
        compute_units = self._geometry.compute_units
        shares = (tiles + SHARE_ROUNDS * compute_units, 1, 1)
        if gate != NOT_GATED and tile == GATED_ROWS:
            assert out_half is not None
            self._of_gated_rows[matrix.format.name].launch(
                shares,
                _HELD_THREADS,
                **arguments,
                up_bias=up_bias,
                out_half=out_half,
                activation=gate,
                multiprocessors=compute_units,
            )
            return
        is_short = tile in _SHORT_ROWS and matrix.quant_blocks <= SHORT_QUANT_BLOCKS
        of_short_rows = self._of_short_rows.get(matrix.format.name) if is_short else None
        if of_short_rows is not None and out is not None and gate == NOT_GATED:
            of_short_rows.launch(
                shares, _HELD_THREADS, **arguments, out=out, multiprocessors=compute_units
            )
            return
        rows = next(rows for rows in GEMM_ROWS if tile <= rows)
        kernel = self._gemms[matrix.format.name, rows]
        kernel.launch(
            (tiles, ceil_div(matrix.stored_rows, GEMM_COLUMNS), 1),
            kernel.max_threads,
            **arguments,
            up_bias=up_bias,
            out=out,
            out_half=out_half,
            partial=None,
            rows=0,
            activation=gate,
            split_quant_blocks=matrix.quant_blocks,
        )

    def _places(self, pairs: int, matrix: Matrix, tile: int) -> DeviceArray | None:
        """Returns where each expert is, once those that are read several times are fetched."""
        hosted, fetched = matrix.hosted, self._fetched
        if hosted is None or fetched is None or pairs < _FETCHED_PAIRS * matrix.num_experts:
            return matrix.places
        found = fetched.places.first(matrix.num_experts)
        self._fetch.launch(
            (matrix.num_experts, _FETCH_PARTS, 1),
            _FETCH_THREADS,
            weight=matrix.data,
            places=hosted.places,
            tiles=self._sorted.tiles,
            fetched=fetched.matrices,
            found=found,
            distance=fetched.matrices.address - matrix.data.address,
            expert_bytes=matrix.nbytes,
            seated_bytes=hosted.seats * matrix.nbytes,
            num_tiles=pairs // tile + matrix.num_experts,
        )
        return found
