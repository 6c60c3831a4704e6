"""Products on int8 matrix instructions: several rows, of which each weight is read once."""

from __future__ import annotations

from typing import Final

from rocmforge_hip.device.constants import (
    QUANT_BLOCK,
    ROW_ALIGN,
    STREAMED_QUANT_BLOCKS,
    STREAMED_ROWS,
)
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import products
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.geometry import MATRIX_QUANT_BLOCKS, MAX_INT8_ROWS, Geometry
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.linear.gemv import GEMV_OUTPUTS
from rocmforge_hip.ops.linear.later import NormLater, UnmadeProduct, is_norm_later
from rocmforge_hip.ops.operands import empty, f32_of, optional_vector, vector_of
from rocmforge_hip.weights.formats import FLOAT_FORMATS, Matrix

_WIDE_ROWS: Final = (8, MAX_INT8_ROWS)  # of kernels with blocks of ROW_ALIGN stored rows
_SIDE_BY_SIDE: Final = 2  # waves of these, and of those that leave norms for later
_EARLY_ROWS: Final = 3  # from which these are faster where they are early
_EARLY_LONG_ROWS: Final = 2  # the same, where rows are long and weights come through LDS
_EARLY_FORMATS: Final = frozenset({"q4_k", "q6_k", "q8_0", "q5_0"})
_LATE_FORMATS: Final = frozenset({"q4_k", "q8_0", "q4_0", "q5_0", "iq4_nl", "mxfp4"})
"""Of which 9 to 16 rows are faster in int8 than as halves, as was measured (docs/benchmarks.md)."""
_SOONER_IN_WARPGROUPS: Final = frozenset({"q4_k"})
"""Of those, the ones that are not where GEMM has matrix instructions of warpgroups."""


class Int8Products:
    """Multiplies up to MAX_INT8_ROWS rows, slices included, with matrices of these formats.

    Args:
        library: Where the kernels are.
        geometry: For the device.
        formats: Stored types of the matrices.
        forms: What makes the int8 forms.
        hidden_size: Of the model.
    """

    def __init__(
        self,
        library: KernelLibrary,
        geometry: Geometry,
        formats: frozenset[str],
        forms: FormKernels,
        hidden_size: int,
    ) -> None:
        self._geometry = geometry
        self._forms = forms
        used = formats - FLOAT_FORMATS if geometry.matrix_rows else frozenset[str]()
        self._narrow = {
            name: library.kernel(f"rf_gemm_int8_{name}", products.rf_gemm_int8) for name in used
        }
        self._wide = {
            (name, most): library.kernel(f"rf_gemm_int8_wide_{name}_r{most}", products.rf_gemm_int8)
            for name in used
            for most in _WIDE_ROWS
        }
        self._deferred = {
            name: library.kernel(f"rf_gemm_int8_deferred_{name}", products.rf_gemm_int8_deferred)
            for name in used
        }
        self._ahead = library.available(
            {name: f"rf_gemm_int8_deferred_ahead_{name}" for name in used},
            products.rf_gemm_int8_deferred,
        )
        is_long = bool(self._ahead) and geometry.streams_row(hidden_size)
        self._early_rows = _EARLY_LONG_ROWS if is_long else _EARLY_ROWS
        self._streamed = library.available(
            {name: f"rf_gemm_int8_stream_{name}" for name in used}, products.rf_gemm_int8
        )

    def is_for(self, rows: int, matrix: Matrix) -> bool:
        """Returns whether so many rows are multiplied here of those that GEMV takes too."""
        least = self._geometry.matrix_rows
        if matrix.format.name in _EARLY_FORMATS:
            least = min(least, self._early_rows)
        return (
            0 < least <= rows * self._forms.slices
            and matrix.format.is_quantised
            and matrix.quant_blocks >= MATRIX_QUANT_BLOCKS
        )

    def completes(self, rows: int, matrix: Matrix) -> bool:
        """Returns whether so many rows, of one slice, may be norms that are completed here."""
        return rows <= _WIDE_ROWS[0] and self._forms.slices == 1 and self.is_for(rows, matrix)

    def defers(self, rows: int, matrix: Matrix) -> bool:
        """Returns whether such a product may be added, and the norms of the sums left for later."""
        return (
            self.completes(rows, matrix)
            and matrix.out_features % QUANT_BLOCK == 0
            and not self._streams(rows, matrix)
        )

    def is_for_more(self, x: Activation, matrix: Matrix) -> bool:
        """Returns whether more rows than GEMV takes are multiplied here, from the float32 of x."""
        late = _LATE_FORMATS
        if self._geometry.has_warpgroups:
            late -= _SOONER_IN_WARPGROUPS
        return (
            matrix.format.name in late
            and x.f32 is not None
            and x.rows * self._forms.slices <= MAX_INT8_ROWS
            and self.is_for(x.rows, matrix)
            and self._geometry.has_wide_blocks(matrix.stored_rows)
        )

    def _streams(self, int8_rows: int, matrix: Matrix) -> bool:
        """Returns whether waves copy so large a matrix ahead, each block that of a compute unit."""
        return (
            int8_rows <= STREAMED_ROWS
            and matrix.quant_blocks <= STREAMED_QUANT_BLOCKS
            and self._geometry.streams(matrix.stored_rows)
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
    ) -> Activation:
        """Returns the product, in float16 if `half`, plus the bias, or gated."""
        out = empty(result, x.rows, matrix.out_features, half=half)
        q, scale = self._forms.int8(x)
        name, int8_rows = matrix.format.name, x.rows * self._forms.slices
        streamed = self._streamed.get(name)
        norm = (x.squares, x.eps) if is_norm_later(x) else (None, 0.0)
        if streamed is not None and self._streams(int8_rows, matrix):
            kernel = streamed
            blocks = min(self._geometry.compute_units, matrix.stored_rows // GEMV_OUTPUTS)
            threads = kernel.max_threads
        elif self._geometry.has_wide_blocks(matrix.stored_rows):
            kernel = self._wide[name, next(n for n in _WIDE_ROWS if int8_rows <= n)]
            blocks, threads = matrix.stored_rows // ROW_ALIGN, kernel.max_threads
        else:
            kernel = self._narrow[name]
            blocks = matrix.stored_rows // GEMV_OUTPUTS
            threads = self._geometry.matrix_threads(matrix.stored_rows, matrix.format.block_size)
        kernel.launch(
            (blocks, 1, 1),
            threads,
            weight=matrix.data,
            q=q,
            scale=scale,
            bias=bias,
            out=out.f32,
            out_half=out.f16,
            rows=x.rows,
            slices=self._forms.slices,
            out_features=matrix.out_features,
            quant_blocks=matrix.quant_blocks,
            activation=gate,
            squares=norm[0],
            eps=norm[1],
        )
        return out

    def add_and_defer(self, product: UnmadeProduct, out: NormLater) -> None:
        """Adds a product to the residual, whose norms are left for what reads them.

        Args:
            product: Of `defers`; what to make first.
            out: The norms; their residual, float32 [rows, features], becomes the sum.
        """
        matrix, features = product.part.matrix, product.features
        assert (out.rows, out.features) == (product.rows, features)
        q, scale = self._forms.int8(product.x)
        # As many waves have a part of K each as in `multiply`, so that all bits are the same.
        name = matrix.format.name
        kernel, side_by_side = self._deferred[name], _SIDE_BY_SIDE
        if name in self._ahead and matrix.quant_blocks % MATRIX_QUANT_BLOCKS == 0:
            kernel, side_by_side = self._ahead[name], 1
        if self._geometry.has_wide_blocks(matrix.stored_rows):
            threads = self._wide[name, _WIDE_ROWS[0]].max_threads // _SIDE_BY_SIDE
        else:
            threads = self._geometry.matrix_threads(matrix.stored_rows, matrix.format.block_size)
        kernel.launch(
            (features // QUANT_BLOCK, 1, 1),
            side_by_side * threads,
            weight=matrix.data,
            q=q,
            scale=scale,
            bias=optional_vector(product.bias, features),
            rows=product.rows,
            out_features=features,
            quant_blocks=matrix.quant_blocks,
            residual=f32_of(out.residual),
            norm_weight=vector_of(out.weight, features),
            **out.parts(),
        )
