"""Linear layers: few rows go through GEMV with int8 activations, more through GEMM with halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from rocmforge.models.config import ActivationFunction
from rocmforge_hip.device.constants import (
    CLAMPED_SWIGLU,
    GELU,
    GELU_TANH,
    GEMM_COLUMNS,
    NOT_GATED,
    QUANT_BLOCK,
    ROW_ALIGN,
    SILU,
)
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import products
from rocmforge_hip.kernels import rows as row_kernels
from rocmforge_hip.ops.activations import Activation, ActivationArrays, Forms
from rocmforge_hip.ops.geometry import (
    GEMM_ROWS,
    MATRIX_QUANT_BLOCKS,
    MAX_INT8_ROWS,
    Geometry,
    gemv_rows,
)
from rocmforge_hip.weights.formats import (
    FLOAT_FORMATS,
    FORMAT_NUMBERS,
    FORMATS,
    Matrix,
    MatrixPart,
    Vector,
    Weight,
    ceil_div,
)

GATES: Final = MappingProxyType(
    {
        ActivationFunction.SILU: SILU,
        ActivationFunction.GELU_TANH: GELU_TANH,
        ActivationFunction.GELU: GELU,
        ActivationFunction.CLAMPED_SWIGLU: CLAMPED_SWIGLU,
    }
)
"""The kernels' names of activation functions."""
_GEMV_ROWS: Final = (1, 2, 4, 8)
_WIDE_ROWS: Final = (8, MAX_INT8_ROWS)  # of int8 products in blocks of ROW_ALIGN stored rows
_EARLY_ROWS: Final = 3  # from which int8 products are faster where they are early
_EARLY_FORMATS: Final = frozenset({"q4_k", "q6_k", "q8_0", "q5_0"})
_LATE_FORMATS: Final = frozenset({"q4_k", "q8_0", "q4_0", "q5_0", "iq4_nl", "mxfp4"})
"""Of which 9 to 16 rows are faster in int8 than as halves, as was measured (docs/benchmarks.md)."""
GEMV_OUTPUTS: Final = 16  # stored rows of a block
_MOST_MIXED: Final = 3  # matrices of one launch
_ENOUGH_WAVES: Final = 8  # on a compute unit
_ELEMENTS: Final = 1024  # of a block of the kernels that convert
_THREADS: Final = 256


class _Factor(NamedTuple):
    """A matrix as `rf_gemv_mixed` takes it, or none."""

    weight: DeviceArray | None
    bias: DeviceArray | None
    out: DeviceArray | None
    out_features: int
    format: int


@dataclass(slots=True, eq=False, kw_only=True)
class UnmadeProduct(Activation):
    """A product that what adds it to the residual makes."""

    x: Activation
    part: MatrixPart
    bias: Weight | None
    post_norm: Weight | None = None  # what is added is the norm of the product


_NO_FACTOR: Final = _Factor(None, None, None, 0, 0)


class LinearKernels:
    """Multiplies activations with matrices of these formats.

    Args:
        library: Where the kernels are.
        geometry: For the device.
        arena: The arrays of the activations.
        formats: Stored types of the matrices.
        slices: Of the int8 activations (kernels/include/rf/act.h) that GEMV reads, 1 or 2; 0 = all
            rows go through GEMM.
    """

    def __init__(
        self,
        library: KernelLibrary,
        geometry: Geometry,
        arena: ActivationArrays[DeviceArray],
        formats: frozenset[str],
        slices: int,
    ) -> None:
        self.slices: Final = slices
        self.gemv_rows: Final = gemv_rows(slices)
        self._geometry = geometry
        self._arena = arena
        self._quantize = library.kernel("rf_quantize_act", row_kernels.rf_quantize_act)
        self._halve = library.kernel("rf_half_act", row_kernels.rf_half_act)
        self._sum = library.kernel("rf_gemm_sum", products.rf_gemm_sum)
        self._gemms = {
            (name, tile): library.kernel(f"rf_gemm_{name}_m{tile}", products.rf_gemm)
            for name in formats
            for tile in GEMM_ROWS
        }
        of_gemv = formats if slices else frozenset[str]()
        self._float_gemvs = {
            (name, most): library.kernel(f"rf_gemv_{name}_r{most}", products.rf_gemv_float)
            for name in of_gemv & FLOAT_FORMATS
            for most in _GEMV_ROWS
        }
        self._gemvs = {
            (name, most): library.kernel(f"rf_gemv_{name}_r{most}", products.rf_gemv)
            for name in of_gemv - FLOAT_FORMATS
            for most in _GEMV_ROWS
        }
        of_matrices = of_gemv - FLOAT_FORMATS if geometry.matrix_rows else frozenset[str]()
        self._int8_gemms = {
            name: library.kernel(f"rf_gemm_int8_{name}", products.rf_gemm_int8)
            for name in of_matrices
        }
        self._wide_int8_gemms = {
            (name, most): library.kernel(f"rf_gemm_int8_wide_{name}_r{most}", products.rf_gemm_int8)
            for name in of_matrices
            for most in _WIDE_ROWS
        }
        self._mixed_gemvs = self._load_mixed(library)
        has_mixed = any(FORMATS[name].is_mixed for name in of_gemv)
        self._norm_gemvs = {
            most: library.kernel(f"rf_gemv_norm_r{most}", products.rf_gemv_norm)
            for most in _GEMV_ROWS
            if has_mixed
        }
        self._gated_gemvs = {
            most: library.kernel(f"rf_gemv_gated_r{most}", products.rf_gemv_gated)
            for most in _GEMV_ROWS
            if has_mixed
        }

    def _load_mixed(self, library: KernelLibrary) -> dict[int, Kernel[...]]:
        """Returns the kernels for several formats, by their rows.

        They take the registers of the largest. Where that leaves too few waves to wait for memory
        in turns, as on gfx906, matrices are multiplied one by one.
        """
        kernels: dict[int, Kernel[...]] = {}
        for most in _GEMV_ROWS:
            apart = [
                kernel
                for (name, rows), kernel in self._gemvs.items()
                if rows == most and FORMATS[name].is_mixed
            ]
            if len(apart) < 2:
                continue
            mixed = library.kernel(f"rf_gemv_mixed_r{most}", products.rf_gemv_mixed)
            blocks = min(kernel.blocks_at_once(_THREADS) for kernel in apart)
            enough = min(blocks, _ENOUGH_WAVES * library.wave_size // _THREADS)
            if mixed.blocks_at_once(_THREADS) >= enough:
                kernels[most] = mixed
        return kernels

    def qkv(
        self,
        x: Activation,
        weights: Sequence[Weight],
        biases: Sequence[Weight | None],
        *,
        half: bool = False,
        then: Callable[[Matrix, Activation], None] = lambda matrix, product: None,
    ) -> tuple[Activation, ...]:
        """Multiplies as `Ops.qkv` says; other arguments as of `multiply`.

        Those of one stored type lie stacked in one matrix: it is multiplied once as a whole, `then`
        called with it and its product, and each gets its columns of that. Several matrices are
        multiplied in one launch, if there is a kernel for that.
        """
        parts = [part_of(weight) for weight in weights]
        stacks = {part.matrix: (part, bias) for part, bias in zip(parts, biases, strict=True)}
        if self._are_mixed(x, list(stacks)):
            products = self._gemv_mixed(x, list(stacks.values()))
        else:
            products = {
                matrix: self.multiply(x, part, bias, half=half)
                for matrix, (part, bias) in stacks.items()
            }
        for matrix, product in products.items():
            then(matrix, product)
        return tuple(_columns(products[part.matrix], part) for part in parts)

    def _are_mixed(self, x: Activation, matrices: Sequence[Matrix]) -> bool:
        """Returns whether so many rows are multiplied with these matrices in one launch."""
        return (
            1 < len(matrices) <= _MOST_MIXED
            and all(self._goes_through_mixed_gemv(x, matrix) for matrix in matrices)
            and _most_rows(x.rows * self.slices) in self._mixed_gemvs
        )

    def _goes_through_mixed_gemv(self, x: Activation, matrix: Matrix) -> bool:
        """Returns whether so many rows are multiplied by GEMV, in a format that kernels may mix."""
        return (
            0 < x.rows <= self.gemv_rows
            and matrix.format.is_mixed
            and not self._has_matrix_product(x.rows * self.slices, matrix)
        )

    def _gemv_mixed(
        self, x: Activation, stacks: Sequence[tuple[MatrixPart, Weight | None]]
    ) -> dict[Matrix, Activation]:
        """Returns the product with each of two or three whole matrices, plus its bias."""
        products: dict[Matrix, Activation] = {}
        factors = [_NO_FACTOR] * _MOST_MIXED
        for place, (part, bias) in enumerate(stacks):
            matrix = part.matrix
            assert x.features == matrix.in_features, (x.features, matrix.in_features)
            assert part.product is not None, "nothing is multiplied with this table"
            result = self._arena.product(part.product)
            products[matrix] = out = empty(result, x.rows, matrix.out_features, half=False)
            factors[place] = _Factor(
                matrix.data,
                optional_vector(bias, matrix.out_features),
                out.f32,
                matrix.out_features,
                FORMAT_NUMBERS[matrix.format.name],
            )
        first, second, third = factors
        q, scale = self.int8(x)
        stored_rows = sum(matrix.stored_rows for matrix in products)
        quant_blocks = x.features // QUANT_BLOCK
        self._mixed_gemvs[_most_rows(x.rows * self.slices)].launch(
            (stored_rows // GEMV_OUTPUTS, 1, 1),
            _gemv_threads(quant_blocks),
            first=first,
            second=second,
            third=third,
            q=q,
            scale=scale,
            rows=x.rows,
            slices=self.slices,
            quant_blocks=quant_blocks,
        )
        return products

    def multiply(
        self,
        x: Activation,
        part: MatrixPart,
        bias: Weight | None,
        gate: int = NOT_GATED,
        *,
        half: bool = False,
    ) -> Activation:
        """Returns the product with the whole matrix of a part, plus the bias.

        Args:
            x: [rows, in_features of the matrix].
            part: Any part of the matrix.
            bias: Of all its outputs, or None.
            gate: NOT_GATED, or the activation of kernels/include/rf/gate.h.
            half: Whether the result shall be in float16, if there are many rows.
        """
        matrix = part.matrix
        assert x.features == matrix.in_features, (x.features, matrix.in_features)
        offset = optional_vector(bias, matrix.out_features)
        assert part.product is not None, "nothing is multiplied with this table"
        result = self._arena.product(part.product)
        if x.rows <= self.gemv_rows:
            if self._has_matrix_product(x.rows * self.slices, matrix):
                return self._int8_gemm(x, matrix, result, offset, gate, half=False)
            return self._gemv(x, matrix, result, offset, gate)
        if gate != NOT_GATED and self._has_wide_product(x, matrix):
            return self._int8_gemm(x, matrix, result, offset, gate, half=True)
        return self._gemm(x, matrix, result, offset, gate, half=half)

    def later(self, x: Activation, part: MatrixPart, bias: Weight | None) -> Activation | None:
        """Returns a product that is to be added and normed, if a launch can do it all, or None."""
        matrix = part.matrix
        if part.product is None or not self._goes_through_mixed_gemv(x, matrix):
            return None
        arrays = self._arena.product(part.product)
        return UnmadeProduct(arrays, x.rows, matrix.out_features, x=x, part=part, bias=bias)

    def gated_int8(self, x: Activation, part: MatrixPart, gate: int) -> Activation | None:
        """Returns the gated product in float32 and int8, if one launch can make both, or None."""
        matrix = part.matrix
        if matrix.out_features % QUANT_BLOCK or not self._goes_through_mixed_gemv(x, matrix):
            return None
        assert part.product is not None
        out = empty(self._arena.product(part.product), x.rows, matrix.out_features, half=False)
        self.give_int8(out)
        q, scale = self.int8(x)
        self._gated_gemvs[_most_rows(x.rows * self.slices)].launch(
            (matrix.out_features // QUANT_BLOCK, 1, 1),
            _gemv_threads(matrix.quant_blocks),
            weight=matrix.data,
            q=q,
            scale=scale,
            out=out,
            rows=x.rows,
            slices=self.slices,
            out_features=matrix.out_features,
            quant_blocks=matrix.quant_blocks,
            activation=gate,
            format=FORMAT_NUMBERS[matrix.format.name],
        )
        return out

    def make_and_norm(
        self,
        product: UnmadeProduct,
        residual: Activation,
        weight: DeviceArray,
        eps: float,
        threads: int,
        out: Activation,
    ) -> None:
        """Adds a product to the residual and norms the sum, as `RmsNorms.add_norm` does.

        Args:
            product: What to make first.
            residual: float32 [rows, features]; becomes the sum.
            weight: float32 [features].
            eps: Of the norm.
            threads: That a block of the norm would have.
            out: Its forms are written.
        """
        matrix, rows = product.part.matrix, product.rows
        assert (residual.rows, residual.features) == (rows, product.features)
        q, scale = self.int8(product.x)
        self._norm_gemvs[_most_rows(rows * self.slices)].launch(
            (matrix.stored_rows // GEMV_OUTPUTS, 1, 1),
            _gemv_threads(matrix.quant_blocks),
            weight=matrix.data,
            q=q,
            scale=scale,
            bias=optional_vector(product.bias, matrix.out_features),
            out=product.arrays.float32(rows, matrix.out_features),
            rows=rows,
            slices=self.slices,
            out_features=matrix.out_features,
            quant_blocks=matrix.quant_blocks,
            format=FORMAT_NUMBERS[matrix.format.name],
            arrived=self._arena.arrived,
            residual=f32_of(residual),
            post_weight=optional_vector(product.post_norm, matrix.out_features),
            norm_weight=weight,
            normed=out,
            norm_threads=threads,
            eps=eps,
        )

    def _gemv(
        self,
        x: Activation,
        matrix: Matrix,
        result: Forms[DeviceArray],
        bias: DeviceArray | None,
        gate: int,
    ) -> Activation:
        out = result.float32(x.rows, matrix.out_features)
        grid = (matrix.stored_rows // GEMV_OUTPUTS, 1, 1)
        threads, name = _gemv_threads(matrix.quant_blocks), matrix.format.name
        if matrix.format.is_quantised:
            q, scale = self.int8(x)
            self._gemvs[name, _most_rows(x.rows * self.slices)].launch(
                grid,
                threads,
                weight=matrix.data,
                q=q,
                scale=scale,
                bias=bias,
                out=out,
                rows=x.rows,
                slices=self.slices,
                out_features=matrix.out_features,
                quant_blocks=matrix.quant_blocks,
                activation=gate,
            )
        else:
            self._float_gemvs[name, _most_rows(x.rows)].launch(
                grid,
                threads,
                weight=matrix.data,
                x=f32_of(x),
                bias=bias,
                out=out,
                rows=x.rows,
                out_features=matrix.out_features,
                quant_blocks=matrix.quant_blocks,
                activation=gate,
            )
        return Activation(result, x.rows, matrix.out_features, f32=out)

    def _has_matrix_product(self, int8_rows: int, matrix: Matrix) -> bool:
        """Returns whether int8 matrix instructions multiply so many rows, slices included."""
        least = self._geometry.matrix_rows
        if matrix.format.name in _EARLY_FORMATS:
            least = min(least, _EARLY_ROWS)
        return (
            0 < least <= int8_rows
            and matrix.format.is_quantised
            and matrix.quant_blocks >= MATRIX_QUANT_BLOCKS
        )

    def _has_wide_product(self, x: Activation, matrix: Matrix) -> bool:
        """Returns whether they multiply more rows than GEMV takes, from the float32 of x."""
        int8_rows = x.rows * self.slices
        return (
            matrix.format.name in _LATE_FORMATS
            and x.f32 is not None
            and int8_rows <= MAX_INT8_ROWS
            and self._has_matrix_product(int8_rows, matrix)
            and self._geometry.has_wide_blocks(matrix.stored_rows)
        )

    def _int8_gemm(
        self,
        x: Activation,
        matrix: Matrix,
        result: Forms[DeviceArray],
        bias: DeviceArray | None,
        gate: int,
        *,
        half: bool,
    ) -> Activation:
        out = empty(result, x.rows, matrix.out_features, half=half)
        q, scale = self.int8(x)
        name, int8_rows = matrix.format.name, x.rows * self.slices
        if self._geometry.has_wide_blocks(matrix.stored_rows):
            kernel = self._wide_int8_gemms[name, next(n for n in _WIDE_ROWS if int8_rows <= n)]
            blocks, threads = matrix.stored_rows // ROW_ALIGN, kernel.max_threads
        else:
            kernel = self._int8_gemms[name]
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
            slices=self.slices,
            out_features=matrix.out_features,
            quant_blocks=matrix.quant_blocks,
            activation=gate,
        )
        return out

    def _gemm(
        self,
        x: Activation,
        matrix: Matrix,
        result: Forms[DeviceArray],
        bias: DeviceArray | None,
        gate: int,
        *,
        half: bool,
    ) -> Activation:
        # What follows a gated layer is another GEMM, which reads halves.
        out = empty(result, x.rows, matrix.out_features, half=half or gate != NOT_GATED)
        shape = self._geometry.gemm(x.rows, matrix.stored_rows, matrix.quant_blocks)
        kernel = self._gemms[matrix.format.name, shape.tile_rows]
        partial = None if shape.splits == 1 else self._arena.gemm_partial
        kernel.launch(
            (
                ceil_div(x.rows, shape.tile_rows),
                ceil_div(matrix.stored_rows, GEMM_COLUMNS),
                shape.splits,
            ),
            kernel.max_threads,
            weight=matrix.data,
            places=None,
            x=self.half(x),
            tiles=None,
            sources=None,
            bias=bias,
            up_bias=None,
            out=out.f32,
            out_half=out.f16,
            partial=partial,
            expert_bytes=0,
            rows=x.rows,
            out_features=matrix.out_features,
            quant_blocks=matrix.quant_blocks,
            activation=gate,
            split_quant_blocks=shape.split_quant_blocks,
        )
        if partial is not None:
            self.finish(partial, bias, out, shape.splits, gate)
        return out

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
            (ceil_div(out.features, _THREADS), out.rows, 1),
            _THREADS,
            partial=partial,
            bias=bias,
            out=out.f32,
            out_half=out.f16,
            splits=splits,
            out_features=out.features,
            activation=gate,
        )

    def int8(self, x: Activation) -> tuple[DeviceArray, DeviceArray]:
        """Returns the int8 form, made now if there is none."""
        if x.q is None or x.q_scale is None:
            q, scale = self.give_int8(x)
            count = x.rows * x.features
            self._quantize.launch(
                (ceil_div(count, _ELEMENTS), 1, 1),
                _THREADS,
                x=f32_of(x),
                q=q,
                scale=scale,
                q_lo_offset=x.q_lo_offset,
                count=count,
            )
            return q, scale
        return x.q, x.q_scale

    def give_int8(self, x: Activation) -> tuple[DeviceArray, DeviceArray]:
        """Gives x arrays for the int8 form, which whoever computes the activation then writes."""
        q, scale = x.arrays.q, x.arrays.q_scale
        assert q is not None, "this activation has no int8 form"
        assert scale is not None
        x.q, x.q_scale = q, scale
        x.q_lo_offset = x.rows * x.features if self.slices > 1 else 0
        return q, scale

    def multiplied(self, x: Activation, matrix: Matrix) -> dict[str, DeviceArray]:
        """Returns the arguments with the form of x that pairs are multiplied in with a matrix."""
        if not matrix.format.is_quantised:
            return {"x": f32_of(x)}
        q, scale = self.int8(x)
        return {"q": q, "scale": scale}

    def half(self, x: Activation) -> DeviceArray:
        """Returns the float16 form, made now if there is none."""
        if x.f16 is None:
            x.f16 = x.arrays.float16(x.rows, x.features)
            count = x.rows * x.features
            self._halve.launch(
                (ceil_div(count, _ELEMENTS), 1, 1), _THREADS, x=f32_of(x), out=x.f16, count=count
            )
        return x.f16


def part_of(weight: Weight) -> MatrixPart:
    """Returns the weight as a part of a matrix."""
    assert isinstance(weight, MatrixPart), "a matrix is needed here"
    return weight


def vector_of(weight: Weight, length: int) -> DeviceArray:
    """Returns the weight as a vector of this length."""
    assert isinstance(weight, Vector), "a vector is needed here"
    assert weight.data.shape == (length,), (weight.data.shape, length)
    return weight.data


def optional_vector(weight: Weight | None, length: int) -> DeviceArray | None:
    """Returns the weight as a vector of this length, or None, which is a null pointer."""
    return None if weight is None else vector_of(weight, length)


def f32_of(x: Activation) -> DeviceArray:
    """Returns the float32 form, which there must be."""
    assert x.f32 is not None, "the activation has no float32 form here"
    return x.f32


def f16_of(x: Activation) -> DeviceArray:
    """Returns the float16 form, which there must be."""
    assert x.f16 is not None, "the activation has no float16 form here"
    return x.f16


def i32_of(x: Activation) -> DeviceArray:
    """Returns the int32 form, which there must be."""
    assert x.i32 is not None, "the activation has no int32 form"
    return x.i32


def empty(arrays: Forms[DeviceArray], rows: int, features: int, *, half: bool) -> Activation:
    """Returns an activation that is to be written to these arrays, in one form."""
    if half:
        return Activation(arrays, rows, features, f16=arrays.float16(rows, features))
    return Activation(arrays, rows, features, f32=arrays.float32(rows, features))


def _columns(product: Activation, part: MatrixPart) -> Activation:
    """Returns the columns of a product with a whole matrix that belong to a part of it."""
    if part.out_features == product.features:
        return product
    columns = part.first, part.first + part.out_features
    return Activation(
        product.arrays,
        product.rows,
        part.out_features,
        f32=product.f32 and product.f32.columns(*columns),
        f16=product.f16 and product.f16.columns(*columns),
        stride=product.features,
    )


def _most_rows(rows: int) -> int:
    """Returns the rows of the smallest GEMV that takes so many."""
    return next(most for most in _GEMV_ROWS if rows <= most)


def _gemv_threads(quant_blocks: int) -> int:
    """Returns so many threads that lanes, eight to a row, take each row in a few steps."""
    return 256 if quant_blocks >= 64 else 128 if quant_blocks >= 16 else 64
