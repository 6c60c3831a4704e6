"""Products on int8 matrix instructions: several rows, of which each weight is read once."""

from __future__ import annotations

from typing import Final

from rocmforge_hip.device.constants import ROW_ALIGN, STREAMED_QUANT_BLOCKS, STREAMED_ROWS
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import products
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.geometry import MATRIX_QUANT_BLOCKS, MAX_INT8_ROWS, Geometry
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.linear.gemv import GEMV_OUTPUTS
from rocmforge_hip.ops.operands import empty
from rocmforge_hip.weights.formats import FLOAT_FORMATS, Matrix

_WIDE_ROWS: Final = (8, MAX_INT8_ROWS)  # of kernels with blocks of ROW_ALIGN stored rows
_EARLY_ROWS: Final = 3  # from which these are faster where they are early
_EARLY_FORMATS: Final = frozenset({"q4_k", "q6_k", "q8_0", "q5_0"})
_LATE_FORMATS: Final = frozenset({"q4_k", "q8_0", "q4_0", "q5_0", "iq4_nl", "mxfp4"})
"""Of which 9 to 16 rows are faster in int8 than as halves, as was measured (docs/benchmarks.md)."""
_SOONER_IN_WARPGROUPS: Final = frozenset({"q4_k"})
"""Of those, the ones that are not where GEMM has matrix instructions of warpgroups."""


class Int8Products:
    """Multiplies up to MAX_INT8_ROWS rows, slices included, with matrices of these formats."""

    def __init__(
        self,
        library: KernelLibrary,
        geometry: Geometry,
        formats: frozenset[str],
        forms: FormKernels,
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
        self._streamed = {
            name: library.kernel(kernel, products.rf_gemm_int8)
            for name in used
            if library.has(kernel := f"rf_gemm_int8_stream_{name}")
        }

    def is_for(self, rows: int, matrix: Matrix) -> bool:
        """Returns whether so many rows are multiplied here of those that GEMV takes too."""
        least = self._geometry.matrix_rows
        if matrix.format.name in _EARLY_FORMATS:
            least = min(least, _EARLY_ROWS)
        return (
            0 < least <= rows * self._forms.slices
            and matrix.format.is_quantised
            and matrix.quant_blocks >= MATRIX_QUANT_BLOCKS
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
        )
        return out
