"""GEMV of kernels that hold the code of several formats, so that a launch does more than a product.

One launch multiplies with matrices of different formats, or rounds or norms what a product made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import products
from rocmforge_hip.ops.activations import Activation, ActivationArrays
from rocmforge_hip.ops.linear.forms import FormKernels
from rocmforge_hip.ops.linear.gemv import (
    GEMV_OUTPUTS,
    GEMV_ROWS,
    GEMV_THREADS,
    GemvKernels,
    gemv_threads,
    most_rows,
)
from rocmforge_hip.ops.linear.gemv_groups import KernelsByGroup, KernelsOfOne, KernelsOfSeveral
from rocmforge_hip.ops.linear.later import (
    NormLater,
    RouterSums,
    UnmadeProduct,
    is_norm_later,
)
from rocmforge_hip.ops.linear.streamed_gemv import StreamedGemv
from rocmforge_hip.ops.operands import empty, f32_of, optional_vector, vector_of
from rocmforge_hip.weights.formats import (
    FLOAT_FORMATS,
    FORMAT_NUMBERS,
    FORMATS,
    Matrix,
    MatrixPart,
    Weight,
)

MOST_MIXED: Final = 3  # matrices of one launch
TILES_AT_ONCE: Final = QUANT_BLOCK // GEMV_OUTPUTS
"""Of a block that leaves a norm for later."""


class _Factor(NamedTuple):
    """A matrix as `rf_gemv_mixed` takes it, or none."""

    weight: DeviceArray | None
    bias: DeviceArray | None
    out: DeviceArray | None
    out_features: int
    format: int


_NO_FACTOR: Final = _Factor(None, None, None, 0, 0)


def _factor_of(matrix: Matrix, bias: Weight | None, out: Activation) -> _Factor:
    return _Factor(
        matrix.data,
        optional_vector(bias, matrix.out_features),
        out.f32,
        matrix.out_features,
        FORMAT_NUMBERS[matrix.format.name],
    )


class MixedGemvKernels:
    """Multiplies few rows in launches that do more than one product.

    Args:
        library: Where the kernels are.
        arena: The arrays of the activations.
        formats: Stored types of the matrices.
        gemvs: The kernels for one format each.
        forms: What makes the int8 forms.
        streamed: What takes some products of one row, on devices that have such kernels.
    """

    def __init__(
        self,
        library: KernelLibrary,
        arena: ActivationArrays[DeviceArray],
        formats: frozenset[str],
        gemvs: GemvKernels,
        forms: FormKernels,
        streamed: StreamedGemv | None,
    ) -> None:
        self._arena = arena
        self._forms = forms
        has_other = arena.other_embedding is not None
        self._of_one = KernelsByGroup(
            formats,
            lambda is_mixed: KernelsOfOne.load(
                library, is_mixed=is_mixed, has_other_embedding=has_other
            ),
        )
        self._of_several = KernelsByGroup(
            formats,
            lambda are_mixed: KernelsOfSeveral.load(library, gemvs, are_mixed=are_mixed),
        )
        has_mixed = any(FORMATS[name].is_mixed for name in formats)
        self._deferred_first = (
            library.kernel("rf_gemv_deferred_first", products.rf_gemv_deferred_first)
            if has_mixed and arena.latent is not None
            else None
        )
        self._streamed = streamed
        self._norms_floats = {
            (name, most): library.kernel(
                f"rf_gemv_norm_{name}_r{most}", products.rf_gemv_norm_float
            )
            for name in formats & FLOAT_FORMATS
            for most in GEMV_ROWS
        }

    def takes(self, rows: int, matrix: Matrix) -> bool:
        """Returns whether there are kernels for so many rows and a quantised matrix."""
        return most_rows(rows * self._forms.slices) in self._of_one.of(matrix).normed

    def has_several(self, rows: int, matrices: Iterable[Matrix]) -> bool:
        """Returns whether one launch multiplies so many rows with these matrices."""
        by_rows = self._of_several.of(*matrices).by_rows
        return most_rows(rows * self._forms.slices) in by_rows

    def defers(self, rows: int) -> bool:
        """Returns whether so many rows of a product may be added, and their norm left for later."""
        return rows * self._forms.slices == 1

    def several(
        self, x: Activation, stacks: Sequence[tuple[MatrixPart, Weight | None]]
    ) -> dict[Matrix, Activation]:
        """Returns the product with each of up to three whole matrices, plus its bias."""
        results: dict[Matrix, Activation] = {}
        factors = [_NO_FACTOR] * MOST_MIXED
        for place, (part, bias) in enumerate(stacks):
            matrix = part.matrix
            assert x.features == matrix.in_features, (x.features, matrix.in_features)
            results[matrix] = out = self._empty_product(x.rows, part)
            factors[place] = _factor_of(matrix, bias, out)
        first, second, third = factors
        q, scale = self._forms.int8(x)
        stored_rows = sum(matrix.stored_rows for matrix in results)
        quant_blocks = x.features // QUANT_BLOCK
        arguments: dict[str, Any] = {
            "first": first,
            "second": second,
            "third": third,
            "q": q,
            "scale": scale,
            "quant_blocks": quant_blocks,
        }
        launched = (stored_rows // GEMV_OUTPUTS, 1, 1), gemv_threads(quant_blocks)
        kernels = self._of_several.of(*results)
        if is_norm_later(x):
            kernel = kernels.completing
            if self._streamed is not None and self._streamed.takes(results):
                kernel, launched = self._streamed.mixed(launched[0][0])
            kernel.launch(*launched, **arguments, squares=x.squares, eps=x.eps)
            return results
        kernels.by_rows[most_rows(x.rows * self._forms.slices)].launch(
            *launched, **arguments, rows=x.rows, slices=self._forms.slices
        )
        return results

    def gated(self, x: Activation, part: MatrixPart, gate: int) -> Activation:
        """Returns the gated product in float32 and int8."""
        matrix = part.matrix
        out = self._empty_product(x.rows, part)
        self._forms.give_int8(out)
        q, scale = self._forms.int8(x)
        arguments: dict[str, Any] = {
            "weight": matrix.data,
            "q": q,
            "scale": scale,
            "out": out,
            "out_features": matrix.out_features,
            "quant_blocks": matrix.quant_blocks,
            "activation": gate,
            "format": FORMAT_NUMBERS[matrix.format.name],
        }
        launched = (matrix.out_features // QUANT_BLOCK, 1, 1), gemv_threads(matrix.quant_blocks)
        kernels = self._of_one.of(matrix)
        if is_norm_later(x):
            kernel = kernels.gated_completing
            if self._streamed is not None and self._streamed.takes_gated(matrix):
                kernel, launched = self._streamed.gated(launched[0][0])
            kernel.launch(*launched, **arguments, squares=x.squares, eps=x.eps)
            return out
        kernels.gated[most_rows(x.rows * self._forms.slices)].launch(
            *launched, **arguments, rows=x.rows, slices=self._forms.slices
        )
        return out

    def gate_per_layer(
        self, x: Activation, matrix: Matrix, other: Mapping[str, Any], out: Activation
    ) -> None:
        """Multiplies rows, and gates another embedding of tokens with that: `Ops.gate_per_layer`.

        Args:
            x: [rows, in_features].
            matrix: [out_features, in_features].
            other: The layer's part of that embedding, as arguments of the kernel.
            out: [rows, out_features]; its forms are written.
        """
        q, scale = self._forms.int8(x)
        most = most_rows(x.rows * self._forms.slices)
        self._of_one.of(matrix).per_layer[most].launch(
            (matrix.out_features // QUANT_BLOCK, 1, 1),
            gemv_threads(matrix.quant_blocks),
            weight=matrix.data,
            q=q,
            scale=scale,
            rows=x.rows,
            slices=self._forms.slices,
            out_features=matrix.out_features,
            quant_blocks=matrix.quant_blocks,
            format=FORMAT_NUMBERS[matrix.format.name],
            embedded=other["rows"],
            projected=other["projected"],
            stride=other["stride"],
            factor=other["scale"],
            out=out,
        )

    def _empty_product(self, rows: int, part: MatrixPart) -> Activation:
        """Returns what the product of so many rows with the whole matrix is to be written to."""
        assert part.product is not None, "nothing is multiplied with this table"
        arrays = self._arena.product(part.product)
        return empty(arrays, rows, part.matrix.out_features, half=False)

    def add_and_defer(
        self, product: UnmadeProduct, out: NormLater, routed: RouterSums | None
    ) -> None:
        """Adds a product of one row to the residual, whose norm is left for what reads it.

        Args:
            product: What to make first.
            out: The norm; its residual, float32 [1, features], becomes the sum.
            routed: Who else reads the norm, if somebody does; the sums are added to.
        """
        matrix, features = product.part.matrix, product.features
        assert (out.rows, out.features) == (product.rows, features)
        q, scale = self._forms.int8(product.x)
        arguments: dict[str, Any] = {
            "weight": matrix.data,
            "q": q,
            "scale": scale,
            "bias": optional_vector(product.bias, features),
            "out_features": features,
            "quant_blocks": matrix.quant_blocks,
            "format": FORMAT_NUMBERS[matrix.format.name],
            "residual": f32_of(out.residual),
            "norm_weight": vector_of(out.weight, features),
            **out.parts(),
        }
        of_kernels = self._of_one.of(matrix).deferred
        threads = TILES_AT_ONCE * gemv_threads(matrix.quant_blocks)
        if self._streamed is not None and self._streamed.takes_deferred(matrix):
            of_kernels, threads = self._streamed.deferred, GEMV_THREADS
        launched = (features // QUANT_BLOCK, 1, 1), threads
        if routed is None:
            of_kernels.alone.launch(*launched, **arguments)
            return
        of_kernels.routed.launch(
            *launched,
            **arguments,
            router=routed.router,
            logit_sums=routed.logit_sums,
            logits=routed.logit_sums.shape[0],
        )

    def norm_first(
        self, x: Activation, first: MatrixPart, second: MatrixPart, norm: Weight, eps: float
    ) -> tuple[NormLater, Activation]:
        """Multiplies a row, and returns the norm of the first product for what reads it.

        Args:
            x: [1, in_features]; a norm that was left for later is completed.
            first: The first outputs of its matrix, as many as whole quant blocks.
            second: Of the same matrix, or of another.
            norm: float32 [out_features of the first].
            eps: Of the norm.

        Returns:
            The norm, and the product with the whole matrix of the second.
        """
        latent, rank = self._arena.latent, first.out_features
        assert self._deferred_first is not None
        assert latent is not None
        assert latent.normed is not None
        assert latent.squares is not None
        is_one = first.matrix is second.matrix
        outs = [self._empty_product(x.rows, part) for part in (first, second)]
        residual = Activation(
            outs[0].arrays, x.rows, rank, f32=f32_of(outs[0]).columns(0, rank), stride=rank
        )
        out = NormLater(
            *(latent.normed, x.rows, rank),
            residual=residual,
            weight=norm,
            squares=latent.squares.first(x.rows, rank // QUANT_BLOCK),
            eps=eps,
        )
        self._forms.give_int8(out)
        q, scale = self._forms.int8(x)
        matrices = dict.fromkeys((first.matrix, second.matrix))
        self._deferred_first.launch(
            (sum(matrix.stored_rows for matrix in matrices) // QUANT_BLOCK, 1, 1),
            TILES_AT_ONCE * gemv_threads(x.features // QUANT_BLOCK),
            first=_factor_of(first.matrix, None, outs[0]),
            second=_NO_FACTOR if is_one else _factor_of(second.matrix, None, outs[1]),
            q=q,
            scale=scale,
            quant_blocks=x.features // QUANT_BLOCK,
            completed=x.squares if is_norm_later(x) else None,
            completed_eps=x.eps if is_norm_later(x) else 0.0,
            normed_columns=rank,
            norm_weight=vector_of(norm, rank),
            **out.parts(),
        )
        return out, outs[0 if is_one else 1]

    def make_and_norm(
        self,
        product: UnmadeProduct,
        residual: Activation,
        weight: DeviceArray | None,
        eps: float,
        out: Activation,
        scale_of_sum: DeviceArray | None,
    ) -> None:
        """Adds a product to the residual and norms the sum, as `RmsNorms.add_norm` does.

        Args:
            product: What to make first.
            residual: float32 [rows, features]; becomes the sum.
            weight: float32 [features]; None: the sum is not normed.
            eps: Of the norm.
            out: Its forms are written.
            scale_of_sum: float32 [1]; None for 1.
        """
        matrix, rows = product.part.matrix, product.rows
        assert self._arena.squares is not None
        assert (residual.rows, residual.features) == (rows, product.features)
        arguments: dict[str, Any] = {
            "weight": matrix.data,
            "bias": optional_vector(product.bias, matrix.out_features),
            "out": product.arrays.float32(rows, matrix.out_features),
            "rows": rows,
            "out_features": matrix.out_features,
            "quant_blocks": matrix.quant_blocks,
            "arrived": self._arena.arrived,
            "residual": f32_of(residual),
            "post_weight": optional_vector(product.post_norm, matrix.out_features),
            "scale_of_sum": scale_of_sum,
            "norm_weight": weight,
            "normed": out,
            "squares": self._arena.squares,
            "eps": eps,
        }
        name = matrix.format.name
        launched = (matrix.stored_rows // GEMV_OUTPUTS, 1, 1), gemv_threads(matrix.quant_blocks)
        if not matrix.format.is_quantised:
            kernel = self._norms_floats[name, most_rows(rows)]
            kernel.launch(*launched, **arguments, x=f32_of(product.x))
            return
        q, scale = self._forms.int8(product.x)
        self._of_one.of(matrix).normed[most_rows(rows * self._forms.slices)].launch(
            *launched,
            **arguments,
            q=q,
            scale=scale,
            slices=self._forms.slices,
            format=FORMAT_NUMBERS[name],
        )
