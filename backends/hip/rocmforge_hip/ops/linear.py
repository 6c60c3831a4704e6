"""Linear layers: few rows go through GEMV with int8 activations, more through GEMM with halves."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from types import MappingProxyType
from typing import Final

from rocmforge.backend.ops import Activation as GateActivation
from rocmforge_hip.device.library import Kernel, KernelLibrary
from rocmforge_hip.device.memory import Arena, DeviceArray
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.geometry import GEMM_COLUMNS, Geometry, gemv_rows
from rocmforge_hip.weights.formats import Matrix, MatrixPart, Vector, Weight, ceil_div

NOT_GATED: Final = 0
GATES: Final = MappingProxyType(
    {GateActivation.SILU: 1, GateActivation.GELU_TANH: 2, GateActivation.GELU: 3}
)
"""As in kernels/include/rf/gate.h."""
_GEMV_OUTPUTS: Final = 16  # stored rows of a block
_ELEMENTS: Final = 1024  # of a block of the kernels that convert
_THREADS: Final = 256


class LinearKernels:
    """Multiplies activations with matrices of these formats.

    Args:
        library: Where the kernels are.
        geometry: For the device.
        arena: Of the activations.
        formats: Stored types of the matrices.
        terms: Of the int8 activations (kernels/include/rf/act.h) that a few rows are rounded to and
            GEMV reads: 1 or 2. 0 = all rows go through GEMM.
    """

    def __init__(
        self,
        library: KernelLibrary,
        geometry: Geometry,
        arena: Arena,
        formats: frozenset[str],
        terms: int,
    ) -> None:
        self._terms = terms
        self.gemv_rows: Final = gemv_rows(terms)
        self._geometry = geometry
        self._arena = arena
        names = ["rf_quantize_act", "rf_half_act", "rf_gemm_sum"]
        for format_name in formats:
            if terms:
                names += [f"rf_gemv_{format_name}_r{rows}" for rows in (1, 2, 4, 8)]
            names += [f"rf_gemm_{format_name}_m{rows}" for rows in (32, 64, 128)]
        self._kernels: dict[str, Kernel] = {name: library.kernel(name) for name in names}
        self._multiplied: tuple[Matrix, Activation, Activation] | None = None

    def linear(
        self,
        x: Activation,
        weight: Weight,
        bias: Weight | None,
        *,
        half: bool = False,
        then: Callable[[Activation], None] = lambda product: None,
    ) -> Activation:
        """As `Ops.linear`; arguments as `multiply`.

        A stack of matrices is multiplied as a whole when the first of them is asked for, and `then`
        called with all of the product.
        """
        part = part_of(weight)
        if self._multiplied is None or self._multiplied[:2] != (part.matrix, x):
            out = self.multiply(x, part, bias, half=half)
            then(out)
            self._multiplied = part.matrix, x, out
        out = self._multiplied[2]
        if part.width == out.width:
            return out
        f32, f16 = (
            array and array.columns(part.first, part.first + part.width)
            for array in (out.f32, out.f16)
        )
        return Activation(out.slot, out.rows, part.width, f32=f32, f16=f16, stride=out.width)

    def multiply(
        self,
        x: Activation,
        part: MatrixPart,
        bias: Weight | None,
        gate: int = NOT_GATED,
        *,
        half: bool = False,
    ) -> Activation:
        """The product with the whole matrix of a part, plus the bias.

        Args:
            x: [rows, columns of the matrix].
            part: Any part of the matrix.
            bias: Of all its outputs, or None.
            gate: NOT_GATED, or the activation of kernels/include/rf/gate.h.
            half: Whether the result shall be in float16, if there are many rows.
        """
        matrix = part.matrix
        assert x.width == matrix.columns, (x.slot, x.width, matrix.columns)
        offset = None if bias is None else vector_of(bias, matrix.width)
        if x.rows <= self.gemv_rows:
            return self._gemv(x, matrix, part.slot, offset, gate)
        return self._gemm(x, matrix, part.slot, offset, gate, half=half)

    def _gemv(
        self, x: Activation, matrix: Matrix, slot: str, bias: DeviceArray | None, gate: int
    ) -> Activation:
        out = self._arena[f"{slot}.f32"].first(x.rows, matrix.width)
        inputs: tuple[DeviceArray, ...] = (f32_of(x),)
        counts: tuple[int, ...] = (x.rows,)
        if matrix.format.is_quantised:
            inputs, counts = self.int8(x), (x.rows, self._terms)
        rows = next(rows for rows in (1, 2, 4, 8) if prod(counts) <= rows)
        self._kernels[f"rf_gemv_{matrix.format.name}_r{rows}"].launch(
            matrix.data,
            *inputs,
            bias,
            None,
            out,
            *counts,
            matrix.width,
            matrix.units,
            gate,
            grid=(matrix.stored_rows // _GEMV_OUTPUTS, 1, 1),
            block=_gemv_threads(matrix.units),
        )
        return Activation(slot, x.rows, matrix.width, f32=out)

    def _gemm(
        self,
        x: Activation,
        matrix: Matrix,
        slot: str,
        bias: DeviceArray | None,
        gate: int,
        *,
        half: bool,
    ) -> Activation:
        # What follows a gated layer is another GEMM, which reads halves.
        out = empty(self._arena, slot, x.rows, matrix.width, half=half or gate != NOT_GATED)
        shape = self._geometry.gemm(x.rows, matrix.stored_rows, matrix.units)
        kernel = self._kernels[f"rf_gemm_{matrix.format.name}_m{shape.tile_rows}"]
        partial = None if shape.splits == 1 else self._arena["gemm_partial"]
        kernel.launch(
            matrix.data,
            self.half(x),
            bias,
            None,
            out.f32,
            out.f16,
            partial,
            x.rows,
            matrix.width,
            matrix.units,
            gate,
            shape.split_units,
            grid=(
                ceil_div(x.rows, shape.tile_rows),
                ceil_div(matrix.stored_rows, GEMM_COLUMNS),
                shape.splits,
            ),
            block=kernel.max_threads,
        )
        if partial is not None:
            self._kernels["rf_gemm_sum"].launch(
                partial,
                bias,
                None,
                out.f32,
                out.f16,
                shape.splits,
                matrix.width,
                gate,
                grid=(ceil_div(matrix.width, _THREADS), x.rows, 1),
                block=_THREADS,
            )
        return out

    def int8(self, x: Activation) -> tuple[DeviceArray, DeviceArray]:
        """The int8 form, made now if there is none."""
        if x.q is None or x.scale is None:
            self.give_int8(x)
            count = x.rows * x.width
            self._kernels["rf_quantize_act"].launch(
                f32_of(x),
                x.q,
                x.scale,
                x.second,
                count,
                grid=(ceil_div(count, _ELEMENTS), 1, 1),
                block=_THREADS,
            )
        assert x.q is not None
        assert x.scale is not None
        return x.q, x.scale

    def give_int8(self, x: Activation) -> None:
        """Arrays for the int8 form, which whoever computes the activation then writes."""
        x.q, x.scale = self._arena[f"{x.slot}.q"], self._arena[f"{x.slot}.scale"]
        x.second = x.rows * x.width if self._terms > 1 else 0

    def half(self, x: Activation) -> DeviceArray:
        """The float16 form, made now if there is none."""
        if x.f16 is None:
            x.f16 = self._arena[f"{x.slot}.f16"].first(x.rows, x.width)
            count = x.rows * x.width
            self._kernels["rf_half_act"].launch(
                f32_of(x), x.f16, count, grid=(ceil_div(count, _ELEMENTS), 1, 1), block=_THREADS
            )
        return x.f16


def part_of(weight: Weight) -> MatrixPart:
    """The weight as a part of a matrix."""
    assert isinstance(weight, MatrixPart), "a matrix is needed here"
    return weight


def vector_of(weight: Weight, length: int) -> DeviceArray:
    """The weight as a vector of this length."""
    assert isinstance(weight, Vector), "a vector is needed here"
    assert weight.data.shape == (length,), (weight.data.shape, length)
    return weight.data


def f32_of(x: Activation) -> DeviceArray:
    """The float32 form, which there must be."""
    assert x.f32 is not None, f"{x.slot} has no float32 form here"
    return x.f32


def empty(arena: Arena, slot: str, rows: int, width: int, *, half: bool) -> Activation:
    """A result in one form."""
    array = arena[f"{slot}.{'f16' if half else 'f32'}"].first(rows, width)
    return Activation(slot, rows, width, f32=None if half else array, f16=array if half else None)


def _gemv_threads(units: int) -> int:
    """Enough that a block's lanes, eight to a row, take each row in a few steps."""
    return 256 if units >= 64 else 128 if units >= 16 else 64
