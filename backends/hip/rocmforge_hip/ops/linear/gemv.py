"""GEMV: few rows with one matrix, in int8 where the matrix is quantised."""

from __future__ import annotations

from typing import Any, Final

from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import products
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.operands import f32_of
from rocmforge_hip.weights.formats import FLOAT_FORMATS, Matrix

GEMV_OUTPUTS: Final = 16  # stored rows of a block
GEMV_THREADS: Final = 256  # of a block, at most
GEMV_ROWS: Final = (1, 2, 4, 8)  # of the kernels for each format


class GemvKernels:
    """Multiplies few rows with matrices of these formats."""

    def __init__(self, library: KernelLibrary, formats: frozenset[str], forms: FormKernels) -> None:
        self._forms = forms
        self._of_floats = {
            (name, most): library.kernel(f"rf_gemv_{name}_r{most}", products.rf_gemv_float)
            for name in formats & FLOAT_FORMATS
            for most in GEMV_ROWS
        }
        self.quantised: Final = {
            (name, most): library.kernel(f"rf_gemv_{name}_r{most}", products.rf_gemv)
            for name in formats - FLOAT_FORMATS
            for most in GEMV_ROWS
        }

    def multiply(
        self,
        x: Activation,
        matrix: Matrix,
        result: Forms[DeviceArray],
        bias: DeviceArray | None,
        gate: int,
    ) -> Activation:
        """Returns the product in float32, plus the bias, or gated."""
        out = result.float32(x.rows, matrix.out_features)
        grid = (matrix.stored_rows // GEMV_OUTPUTS, 1, 1)
        threads, name = gemv_threads(matrix.quant_blocks), matrix.format.name
        arguments: dict[str, Any] = {
            "weight": matrix.data,
            "bias": bias,
            "out": out,
            "rows": x.rows,
            "out_features": matrix.out_features,
            "quant_blocks": matrix.quant_blocks,
            "activation": gate,
        }
        if matrix.format.is_quantised:
            q, scale = self._forms.int8(x)
            self.quantised[name, most_rows(x.rows * self._forms.slices)].launch(
                *(grid, threads), **arguments, q=q, scale=scale, slices=self._forms.slices
            )
        else:
            kernel = self._of_floats[name, most_rows(x.rows)]
            kernel.launch(grid, threads, **arguments, x=f32_of(x))
        return Activation(result, x.rows, matrix.out_features, f32=out)


def most_rows(rows: int) -> int:
    """Returns the rows of the smallest GEMV that takes so many."""
    return next(most for most in GEMV_ROWS if rows <= most)


def gemv_threads(quant_blocks: int) -> int:
    """Returns so many threads that lanes, eight to a row, take each row in a few steps."""
    return GEMV_THREADS if quant_blocks >= 64 else 128 if quant_blocks >= 16 else 64
