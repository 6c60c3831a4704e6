"""GEMM: many rows, as halves, in tiles."""

from __future__ import annotations

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
        partial = None if shape.splits == 1 else self._arena.gemm_partial
        if partial is not None and self._left is not None:
            self.make(self._left)
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
        most = next((most for most in _FEW_ROWS if rows <= most), 0)
        return self._few.get((name, most))

    def finish(
        self,
        partial: DeviceArray,
        bias: DeviceArray | None,
        out: Activation,
        splits: int,
        gate: int,
    ) -> None:
        """Adds up what the splits of K of a GEMM left, in stored rows, and applies the gate."""
        self._sum.launch(
            (ceil_div(out.features, _SUM_THREADS), out.rows, 1),
            _SUM_THREADS,
            partial=partial,
            bias=bias,
            out=out.f32,
            out_half=out.f16,
            splits=splits,
            out_features=out.features,
            activation=gate,
        )
