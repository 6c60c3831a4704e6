"""GEMM: many rows, as halves, in tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocmforge_hip.device.constants import GEMM_COLUMNS, NOT_GATED, WIDE_GEMM_ROWS
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import products
from rocmforge_hip.ops.activations import Activation, ActivationArrays, Forms
from rocmforge_hip.ops.geometry import GEMM_ROWS, GemmShape, Geometry
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.operands import empty
from rocmforge_hip.weights.formats import Matrix, Weight, ceil_div

_SUM_THREADS: Final = 256
_FEW_ROWS: Final = (16, 32, 64, 128)
"""The most rows of kernels that have no groups and one tile of rows, where devices have those."""
_WIDE_ROWS: Final = (256, WIDE_GEMM_ROWS)
"""The rows of the tiles of kernels that have no groups, for very many rows."""
_BESIDE: Final = "q6_k"
"""The format of the second of two matrices that one launch multiplies with."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A matrix that activations are multiplied with, and where the product goes."""

    matrix: Matrix
    result: Forms[DeviceArray]
    bias: DeviceArray | None


@dataclass(slots=True, eq=False, kw_only=True)
class UnmadeSplits(Activation):
    """A product whose K was split, which what adds it to the residual adds up."""

    partial: DeviceArray  # float32 [splits, rows, features]
    splits: int
    bias: DeviceArray | None
    post_norm: Weight | None = None  # what is added is the norm of the product
    is_made: bool = False


class GemmKernels:
    """Multiplies any number of rows with matrices of these formats.

    Splits of K share one place: what is left of them is made before others are written there.
    """

    def __init__(
        self,
        library: KernelLibrary,
        geometry: Geometry,
        arena: ActivationArrays[DeviceArray],
        formats: frozenset[str],
        forms: FormKernels,
    ) -> None:
        self._geometry = geometry
        self._arena = arena
        self._forms = forms
        self._left: UnmadeSplits | None = None
        self._sum = library.kernel("rf_gemm_sum", products.rf_gemm_sum)
        self._gemms = {
            (name, tile): library.kernel(f"rf_gemm_{name}_m{tile}", products.rf_gemm)
            for name in formats
            for tile in GEMM_ROWS
        }
        self._few = library.available(
            {(name, most): f"rf_gemm_{name}_r{most}" for name in formats for most in _FEW_ROWS},
            products.rf_gemm_ungrouped,
        )
        self._beside = library.available(
            {
                (name, most): f"rf_gemm_beside_{_BESIDE}_{name}_r{most}"
                for name in formats
                for most in _FEW_ROWS
            },
            products.rf_gemm_beside,
        )
        self._wide = library.available(
            {
                (name, tile): f"rf_gemm_wide_{name}_r{tile}"
                for name in formats
                for tile in _WIDE_ROWS
            },
            products.rf_gemm_ungrouped,
        )

    def multiply(
        self,
        x: Activation,
        matrix: Matrix,
        result: Forms[DeviceArray],
        bias: DeviceArray | None,
        gate: int,
        *,
        half: bool,
        up_bias: DeviceArray | None = None,
        leaves_splits: bool = False,
    ) -> Activation:
        """Returns the product, in float16 if `half`, plus the bias, or gated.

        K is whole where a gated product has biases: what adds up splits knows none of them. With
        `leaves_splits`, the product may be an `UnmadeSplits`.
        """
        # What follows a gated layer is another GEMM, which reads halves.
        out = empty(result, x.rows, matrix.out_features, half=half or gate != NOT_GATED)
        name = matrix.format.name
        shape = self._geometry.gemm(
            *(x.rows, matrix.stored_rows, matrix.quant_blocks),
            has_wide=(name, WIDE_GEMM_ROWS) in self._wide,
        )
        if up_bias is not None:
            shape = GemmShape(shape.tile_rows, 1, matrix.quant_blocks)
        partial = None if shape.splits == 1 else self._partial()
        grid = (
            ceil_div(x.rows, shape.tile_rows),
            ceil_div(matrix.stored_rows, GEMM_COLUMNS),
            shape.splits,
        )
        arguments: dict[str, Any] = {
            "weight": matrix.data,
            "x": self._forms.half(x),
            "bias": bias,
            "up_bias": up_bias,
            "out": out.f32,
            "out_half": out.f16,
            "partial": partial,
            "rows": x.rows,
            "out_features": matrix.out_features,
            "quant_blocks": matrix.quant_blocks,
            "activation": gate,
            "split_quant_blocks": shape.split_quant_blocks,
        }
        ungrouped = self._ungrouped(x.rows, matrix, shape)
        if ungrouped is not None:
            ungrouped.launch(grid, ungrouped.max_threads, **arguments)
        else:
            kernel = self._gemms[name, shape.tile_rows]
            no_groups: dict[str, Any] = {"places": None, "tiles": None, "sources": None}
            kernel.launch(grid, kernel.max_threads, **arguments, **no_groups, expert_bytes=0)
        if partial is None:
            return out
        if leaves_splits and matrix.stored_rows == matrix.out_features:
            self._left = UnmadeSplits(
                *(result, x.rows, matrix.out_features),
                partial=partial,
                splits=shape.splits,
                bias=bias,
            )
            return self._left
        self.finish(partial, bias, out, shape.splits, gate)
        return out

    def multiply_two(
        self, x: Activation, factors: Sequence[Factor], *, half: bool
    ) -> dict[Matrix, Activation] | None:
        """Returns the products with two matrices, which one launch makes and another adds up.

        None if there are no such kernels for these, or K is not split for so few rows.
        """
        first, second = sorted(factors, key=lambda each: each.matrix.format.name == _BESIDE)
        both, rows = (first.matrix, second.matrix), x.rows
        kernel = self._beside.get((first.matrix.format.name, _few_rows(rows)))
        is_whole = all(matrix.stored_rows == matrix.out_features for matrix in both)
        if kernel is None or second.matrix.format.name != _BESIDE or not is_whole:
            return None
        features, more = (matrix.out_features for matrix in both)
        shape = self._geometry.gemm(rows, features + more, first.matrix.quant_blocks)
        if shape.splits == 1:
            return None
        made = empty(first.result, rows, features, half=half)
        other = empty(second.result, rows, more, half=half)
        partial = self._partial()
        tiles = ceil_div(features, GEMM_COLUMNS) + ceil_div(more, GEMM_COLUMNS)
        kernel.launch(
            (1, tiles, shape.splits),
            kernel.max_threads,
            weight=first.matrix.data,
            second_weight=second.matrix.data,
            x=self._forms.half(x),
            partial=partial,
            rows=rows,
            first_features=features,
            second_features=more,
            quant_blocks=first.matrix.quant_blocks,
            split_quant_blocks=shape.split_quant_blocks,
        )
        self._add_up(partial, [(made, first.bias), (other, second.bias)], shape.splits)
        return {first.matrix: made, second.matrix: other}

    def take(self, product: UnmadeSplits) -> None:
        """Leaves it to the caller to add up a product that is not made."""
        assert product is self._left
        self._left = None

    def make(self, product: UnmadeSplits) -> Activation:
        """Returns the product, made now if it is not."""
        if not product.is_made:
            self.take(product)
            product.f32 = product.arrays.float32(product.rows, product.features)
            self.finish(product.partial, product.bias, product, product.splits, NOT_GATED)
            product.is_made = True
        return product

    def _ungrouped(self, rows: int, matrix: Matrix, shape: GemmShape) -> Kernel[...] | None:
        """Returns the kernel without groups for a shape, if there is one."""
        name, tile = matrix.format.name, shape.tile_rows
        if tile == WIDE_GEMM_ROWS:
            # As many smaller tiles are faster, where they are enough.
            wide = next(wide for wide in _WIDE_ROWS if ceil_div(rows, tile) * wide >= rows)
            return self._wide[name, wide]
        return self._few.get((name, _few_rows(rows)))

    def _partial(self) -> DeviceArray:
        """Returns the place of the splits of a product, which no other's are in."""
        if self._left is not None:
            self.make(self._left)
        return self._arena.gemm_partial

    def finish(
        self,
        partial: DeviceArray,
        bias: DeviceArray | None,
        out: Activation,
        splits: int,
        gate: int,
    ) -> None:
        """Adds up what the splits of K of a GEMM left, in stored rows, and applies the gate."""
        self._add_up(partial, [(out, bias)], splits, gate)

    def _add_up(
        self,
        partial: DeviceArray,
        outs: Sequence[tuple[Activation, DeviceArray | None]],
        splits: int,
        gate: int = NOT_GATED,
    ) -> None:
        """Adds up the splits of one product or two, each with its bias."""
        (out, bias), *others = outs
        second, second_bias = others[0] if others else (None, None)
        features = out.features + (second.features if second else 0)
        self._sum.launch(
            (ceil_div(features, _SUM_THREADS), out.rows, 1),
            _SUM_THREADS,
            partial=partial,
            bias=bias,
            out=out.f32,
            out_half=out.f16,
            second_bias=second_bias,
            second_out=second.f32 if second else None,
            second_out_half=second.f16 if second else None,
            splits=splits,
            out_features=out.features,
            second_features=second.features if second else 0,
            activation=gate,
        )


def _few_rows(rows: int) -> int:
    """Returns the most rows of the kernels for so few; 0: there are none."""
    return next((most for most in _FEW_ROWS if rows <= most), 0)
