"""The choice of kernels for a linear layer, by its rows and the format of its matrix."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from rocmforge.models.config import ActivationFunction
from rocmforge_hip.device.constants import (
    CLAMPED_SWIGLU,
    GELU,
    GELU_TANH,
    NOT_GATED,
    QUANT_BLOCK,
    SILU,
    SQUARED_RELU,
)
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation, ActivationArrays
from rocmforge_hip.ops.geometry import Geometry, gemv_rows
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.linear.gemm import Factor, GemmKernels
from rocmforge_hip.ops.linear.gemv import GemvKernels
from rocmforge_hip.ops.linear.int8_products import Int8Products
from rocmforge_hip.ops.linear.later import NormLater, RouterSums, UnmadeProduct, is_norm_later
from rocmforge_hip.ops.linear.mixed_gemv import MOST_MIXED, MixedGemvKernels
from rocmforge_hip.ops.linear.streamed_gemv import STREAMED, StreamedGemv
from rocmforge_hip.ops.operands import optional_vector, part_of
from rocmforge_hip.weights.formats import Matrix, MatrixPart, Weight

GATES: Final = MappingProxyType(
    {
        ActivationFunction.SILU: SILU,
        ActivationFunction.GELU_TANH: GELU_TANH,
        ActivationFunction.GELU: GELU,
        ActivationFunction.CLAMPED_SWIGLU: CLAMPED_SWIGLU,
        ActivationFunction.SQUARED_RELU: SQUARED_RELU,
    }
)
"""The kernels' names of activation functions."""


class LinearKernels:
    """Multiplies activations with matrices of these formats.

    Few rows go through GEMV with int8 activations, some more through int8 matrix instructions where
    those are faster, and many through GEMM with halves.

    Args:
        library: Where the kernels are.
        geometry: For the device.
        arena: The arrays of the activations.
        formats: Stored types of the matrices.
        slices: Of the int8 activations (rf/activations/act.h) that GEMV reads, 1 or 2; 0 = all
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
        self._arena = arena
        self.forms: Final = FormKernels(library, slices)
        self.gemm: Final = GemmKernels(library, geometry, arena, formats, self.forms)
        of_gemv = formats if slices else frozenset[str]()
        self._gemv = GemvKernels(library, of_gemv, self.forms)
        streamed = StreamedGemv.of(library, geometry) if of_gemv & STREAMED else None
        self._mixed = MixedGemvKernels(library, arena, of_gemv, self._gemv, self.forms, streamed)
        hidden_size = QUANT_BLOCK * arena.squares.shape[1] if arena.squares is not None else 0
        self._int8 = Int8Products(library, geometry, of_gemv, self.forms, hidden_size)

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
        is_one = 1 < len(stacks) <= MOST_MIXED or is_norm_later(x)
        if is_one and self._are_one_launch(x, stacks):
            products = self._mixed.several(x, list(stacks.values()))
        else:
            products = self._multiply_two(x, list(stacks.values()), half=half) or {
                matrix: self.multiply(x, part, bias, half=half)
                for matrix, (part, bias) in stacks.items()
            }
        for matrix, product in products.items():
            then(matrix, product)
        return tuple(_columns(products[part.matrix], part) for part in parts)

    def _multiply_two(
        self, x: Activation, factors: Sequence[tuple[MatrixPart, Weight | None]], *, half: bool
    ) -> dict[Matrix, Activation] | None:
        """Returns the products of two matrices as `GemmKernels.multiply_two` does."""
        if len(factors) != 2 or x.rows <= self.gemv_rows:
            return None
        return self.gemm.multiply_two(x, [self._factor(*each) for each in factors], half=half)

    def _factor(self, part: MatrixPart, bias: Weight | None) -> Factor:
        assert part.product is not None, "nothing is multiplied with this table"
        offset = optional_vector(bias, part.matrix.out_features)
        return Factor(part.matrix, self._arena.product(part.product), offset)

    def multiply(
        self,
        x: Activation,
        part: MatrixPart,
        bias: Weight | None,
        gate: int = NOT_GATED,
        *,
        half: bool = False,
        up_bias: Weight | None = None,
        leaves_splits: bool = False,
    ) -> Activation:
        """Returns the product with the whole matrix of a part, plus the bias.

        Args:
            x: [rows, in_features of the matrix].
            part: Any part of the matrix.
            bias: Of all its outputs, or None.
            gate: NOT_GATED, or the activation of kernels/include/rf/activations/gate.h.
            half: Whether the result shall be in float16, if there are many rows.
            up_bias: Of a gated product that has a bias, which is that of the gate.
            leaves_splits: Whether it may be an `UnmadeSplits`.
        """
        matrix = part.matrix
        assert x.features == matrix.in_features, (x.features, matrix.in_features)
        own = self._factor(part, bias)
        result, offset = own.result, own.bias
        if up_bias is not None:
            assert not self.gemv_rows, "such networks are those of towers"
            more = optional_vector(up_bias, matrix.out_features)
            return self.gemm.multiply(x, matrix, result, offset, gate, half=half, up_bias=more)
        if x.rows <= self.gemv_rows:
            if self._int8.is_for(x.rows, matrix):
                return self._int8.multiply(x, matrix, result, offset, gate, half=False)
            return self._gemv.multiply(x, matrix, result, offset, gate)
        if gate != NOT_GATED and self._int8.is_for_more(x, matrix):
            return self._int8.multiply(x, matrix, result, offset, gate, half=True)
        return self.gemm.multiply(
            *(x, matrix, result, offset, gate), half=half, leaves_splits=leaves_splits
        )

    def later(
        self, x: Activation, part: MatrixPart, bias: Weight | None, *, defers: bool
    ) -> Activation | None:
        """Returns a product that is to be added and normed, if a launch can do that, or None."""
        matrix = part.matrix
        if part.product is None:
            return None
        is_gemv = self._goes_through_gemv(x, matrix)
        if defers:
            can = self._mixed.defers(x.rows) if is_gemv else self._int8.defers(x.rows, matrix)
        elif matrix.format.is_quantised:
            can = is_gemv
        else:
            can = 0 < x.rows <= self.gemv_rows
        if not can:
            return None
        arrays = self._arena.product(part.product)
        return UnmadeProduct(
            *(arrays, x.rows, matrix.out_features), x=x, part=part, bias=bias, defers=defers
        )

    def make_and_norm(
        self,
        product: UnmadeProduct,
        residual: Activation,
        weight: DeviceArray | None,
        eps: float,
        out: Activation,
        scale: DeviceArray | None,
    ) -> None:
        """Does with what `later` returned as `MixedGemvKernels.make_and_norm` says."""
        self._mixed.make_and_norm(product, residual, weight, eps, out, scale)

    def add_and_defer(
        self,
        product: UnmadeProduct,
        residual: Activation,
        weight: Weight,
        eps: float,
        routed: RouterSums | None = None,
    ) -> NormLater:
        """Adds what `later` returned to the residual, and returns the norms for what reads them.

        Args:
            product: What to make first.
            residual: float32 [rows, features]; becomes the sum.
            weight: float32 [features].
            eps: Of the norm.
            routed: Who else reads the norm, of one row; its sums are added to.
        """
        out = self.norm_later(residual, weight, eps)
        if self._goes_through_gemv(product.x, product.part.matrix):
            self._mixed.add_and_defer(product, out, routed)
        else:
            assert routed is None
            self._int8.add_and_defer(product, out)
        return out

    def norm_later(self, residual: Activation, weight: Weight, eps: float) -> NormLater:
        """Returns the norm of the residual, whose first part is still to be written."""
        rows, features = residual.rows, residual.features
        assert self._arena.squares is not None
        out = NormLater(
            *(self._arena.normed, rows, features),
            residual=residual,
            weight=weight,
            squares=self._arena.squares.first(rows, features // QUANT_BLOCK),
            eps=eps,
        )
        self.forms.give_int8(out)
        return out

    def norm_first(
        self, x: Activation, weights: tuple[Weight, Weight], norm: Weight, eps: float
    ) -> tuple[NormLater, Activation] | None:
        """Returns what `Ops.norm_first` does, the norm for later; None: no launch makes both."""
        first, second = (part_of(weight) for weight in weights)
        if not self._mixed.defers(x.rows) or first.first or first.out_features % QUANT_BLOCK:
            return None
        matrices = first.matrix, second.matrix
        if not all(matrix.format.is_mixed for matrix in matrices):
            return None
        if not self._are_one_launch(x, matrices):
            return None
        normed, product = self._mixed.norm_first(x, first, second, norm, eps)
        return normed, _columns(product, second)

    def completes(self, x: Activation, weights: Sequence[Weight]) -> bool:
        """Returns whether `qkv` completes the norm that x is, multiplying with these matrices."""
        matrices = {part_of(weight).matrix for weight in weights}
        if all(self._int8.completes(x.rows, matrix) for matrix in matrices):
            return True
        return len(matrices) <= MOST_MIXED and self._are_one_launch(x, matrices)

    def completes_gated(self, x: Activation, part: MatrixPart) -> bool:
        """Returns whether `multiply` completes the norm that x is, multiplying with gate and up."""
        return self._int8.completes(x.rows, part.matrix)

    def is_one_row(self, x: Activation, matrices: Iterable[Matrix]) -> bool:
        """Returns whether x is one row of one slice, which GEMV multiplies with all of them."""
        through = all(self._goes_through_gemv(x, matrix) for matrix in matrices)
        return through and self._mixed.defers(x.rows)

    def gated_int8(self, x: Activation, part: MatrixPart, gate: int) -> Activation | None:
        """Returns the gated product in float32 and int8, if one launch can make both, or None."""
        matrix = part.matrix
        if matrix.out_features % QUANT_BLOCK or not self._goes_through_gemv(x, matrix):
            return None
        return self._mixed.gated(x, part, gate)

    def gates_per_layer(self, x: Activation, part: MatrixPart) -> bool:
        """Returns whether one launch makes the gate of another embedding and what it gates."""
        is_whole = part.matrix.out_features % QUANT_BLOCK == 0
        return is_whole and self._goes_through_gemv(x, part.matrix)

    def gate_per_layer(
        self, x: Activation, part: MatrixPart, other: Mapping[str, Any], out: Activation
    ) -> None:
        """Does what `MixedGemvKernels.gate_per_layer` says, if `gates_per_layer`."""
        self._mixed.gate_per_layer(x, part.matrix, other, out)

    def _are_one_launch(self, x: Activation, matrices: Collection[Matrix]) -> bool:
        """Returns whether a kernel multiplies so many rows with such matrices in one launch."""
        through = all(self._goes_through_gemv(x, matrix) for matrix in matrices)
        return through and self._mixed.has_several(x.rows, matrices)

    def _goes_through_gemv(self, x: Activation, matrix: Matrix) -> bool:
        """Returns whether such kernels of GEMV multiply so many rows that do more than that."""
        return (
            0 < x.rows <= self.gemv_rows
            and matrix.format.is_quantised
            and self._mixed.takes(x.rows, matrix)
            and not self._int8.is_for(x.rows, matrix)
        )


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
