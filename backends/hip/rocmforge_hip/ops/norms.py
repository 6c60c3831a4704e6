"""Launches of kernels that norm rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rocmforge.models.config import ModelConfig, NormKind
from rocmforge_hip.device.driver import Dim3
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import rows as row_kernels
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.linear.gemm import UnmadeSplits
from rocmforge_hip.ops.operands import f16_of, f32_of, optional_vector, vector_of
from rocmforge_hip.weights.formats import Weight, ceil_div, round_up

MAX_NORM_DIM: Final = 16 * 1024


@dataclass(slots=True, eq=False, kw_only=True)
class UnmadeNorm(Activation):
    """A norm that what adds it to the residual makes."""

    x: Activation
    weight: Weight


def without_norm(x: Activation) -> tuple[Activation, Weight | None]:
    """Returns what is normed on its way into the residual, and the norm, if there is one."""
    return (x.x, x.weight) if isinstance(x, UnmadeNorm) else (x, None)


class RmsNorms:
    """Norms by root mean square; they have no bias.

    Args:
        library: Where the kernels are.
        eps: Of the model.
        with_bias: For the norms of towers that have a bias, which are by mean and variance.
    """

    def __init__(
        self, library: KernelLibrary, eps: float, with_bias: LayerNorms | None = None
    ) -> None:
        self.eps: Final = eps
        self._with_bias = with_bias
        self._norm = library.kernel("rf_rms_norm", row_kernels.rf_rms_norm)
        self._add_norm = library.kernel("rf_add_rms_norm", row_kernels.rf_add_rms_norm)
        self._add_splits = library.kernel(
            "rf_add_splits_rms_norm", row_kernels.rf_add_splits_rms_norm
        )
        self._give = library.kernel("rf_give_rows", row_kernels.rf_give_rows)
        self._add = library.kernel("rf_add_rows", row_kernels.rf_add_rows)
        self._columns = library.kernel("rf_rms_norm_columns", row_kernels.rf_rms_norm_columns)
        self._halves = library.kernel("rf_rms_norm_half", row_kernels.rf_rms_norm_half)

    def norm(
        self,
        x: Activation,
        weight: Weight | None,
        bias: Weight | None,
        out: Activation,
        eps: float | None = None,
    ) -> None:
        """Norms the rows of x, with the model's eps or another one."""
        if bias is not None:
            assert self._with_bias is not None
            self._with_bias.norm(x, weight, bias, out, eps)
            return
        if weight is None:
            self._give.launch(*row_blocks(x), x=f32_of(x), out=out, hidden_size=x.features)
            return
        self._norm.launch(
            *row_blocks(x),
            x=f32_of(x),
            weight=vector_of(weight, x.features),
            out=out,
            stride=x.stride or x.features,
            hidden_size=x.features,
            eps=self.eps if eps is None else eps,
        )

    def add_norm(
        self,
        residual: Activation,
        delta: Activation,
        weight: Weight | None,
        bias: Weight | None,
        out: Activation,
        total: DeviceArray | None,
        scale: Weight | None = None,
        post_norm: Weight | None = None,
    ) -> None:
        """Norms the rows of scale * (residual + delta), if there is a weight for it.

        The sum goes to `total`, the residual's place. With a `post_norm`, the norm of delta is
        added.
        """
        assert bias is None
        assert total is residual.f32, "the kernel writes the sum to the place of the residual"
        assert (residual.rows, residual.features) == (delta.rows, delta.features)
        arguments: dict[str, Any] = {
            "delta": f32_of(delta),
            "residual": f32_of(residual),
            "post_weight": optional_vector(post_norm, residual.features),
            "out": out,
            "hidden_size": residual.features,
            "eps": self.eps,
        }
        if weight is None:
            assert scale is None
            self._add.launch(*row_blocks(residual), **arguments)
            return
        self._add_norm.launch(
            *row_blocks(residual),
            **arguments,
            scale=optional_vector(scale, 1),
            weight=vector_of(weight, residual.features),
        )

    def adds_splits(self, features: int) -> bool:
        """Returns whether `add_splits_norm` takes rows of so many features."""
        return norm_threads(features) <= self._add_splits.max_threads

    def add_splits_norm(
        self,
        residual: Activation,
        delta: UnmadeSplits,
        weight: Weight,
        out: Activation,
        scale: Weight | None,
    ) -> None:
        """Does as `add_norm`, and adds up the product first."""
        rows, features = residual.rows, residual.features
        self._add_splits.launch(
            (rows, 1, 1),
            sum_threads(features, self._add_splits.max_threads),
            partial=delta.partial,
            bias=delta.bias,
            residual=f32_of(residual),
            post_weight=optional_vector(delta.post_norm, features),
            scale=optional_vector(scale, 1),
            weight=vector_of(weight, features),
            out=out,
            splits=delta.splits,
            hidden_size=features,
            eps=self.eps,
        )

    def norm_projection(
        self, x: Activation, weight: Weight, bias: Weight | None, eps: float | None = None
    ) -> None:
        """Norms rows in place, those of towers as halves; they may be columns of a wider matrix."""
        assert bias is None
        if x.f32 is not None:
            self.norm_projections((x, weight), None, eps)
            return
        self._halves.launch(
            *row_blocks(x),
            x=f16_of(x),
            weight=vector_of(weight, x.features),
            stride=x.stride or x.features,
            hidden_size=x.features,
            eps=self.eps if eps is None else eps,
        )

    def norm_projections(
        self,
        first: tuple[Activation, Weight],
        second: tuple[Activation, Weight] | None,
        eps: float | None = None,
    ) -> None:
        """Norms rows of one or two such activations."""
        (x, weight), (other, other_weight) = first, second or (None, None)
        features = 0 if other is None else other.features
        self._columns.launch(
            (x.rows, 1 if other is None else 2, 1),
            norm_threads(max(x.features, features)),
            x=f32_of(x),
            weight=vector_of(weight, x.features),
            stride=x.stride or x.features,
            hidden_size=x.features,
            other=None if other is None else f32_of(other),
            other_weight=optional_vector(other_weight, features),
            other_stride=0 if other is None else other.stride or features,
            other_size=features,
            eps=self.eps if eps is None else eps,
        )


class LayerNorms:
    """Norms by mean and variance."""

    def __init__(self, library: KernelLibrary, eps: float) -> None:
        self._eps = eps
        self._norm = library.kernel("rf_layer_norm", row_kernels.rf_layer_norm)
        self._add_norm = library.kernel("rf_add_layer_norm", row_kernels.rf_add_layer_norm)
        self._norm_half = library.kernel("rf_layer_norm_half", row_kernels.rf_layer_norm_half)
        self._add = library.kernel("rf_add_rows", row_kernels.rf_add_rows)

    def norm(
        self,
        x: Activation,
        weight: Weight | None,
        bias: Weight | None,
        out: Activation,
        eps: float | None = None,
    ) -> None:
        """Norms the rows of x, with the model's eps or another one."""
        assert weight is not None
        self._norm.launch(
            *row_blocks(x),
            x=f32_of(x),
            weight=vector_of(weight, x.features),
            bias=optional_vector(bias, x.features),
            out=out,
            hidden_size=x.features,
            eps=self._eps if eps is None else eps,
        )

    def add_norm(
        self,
        residual: Activation,
        delta: Activation,
        weight: Weight | None,
        bias: Weight | None,
        out: Activation,
        total: DeviceArray | None,
        scale: Weight | None = None,
        post_norm: Weight | None = None,
    ) -> None:
        """Norms the rows of residual + delta, and writes the sum itself to `total`, if given.

        Without a weight, the sum alone is written, which is the residual's place.
        """
        assert scale is None
        assert post_norm is None
        assert (residual.rows, residual.features) == (delta.rows, delta.features)
        if weight is None:
            assert total is residual.f32, "the kernel writes the sum to the place of the residual"
            self._add.launch(
                *row_blocks(residual),
                delta=f32_of(delta),
                residual=f32_of(residual),
                post_weight=None,
                out=Activation(out.arrays, out.rows, out.features),
                hidden_size=residual.features,
                eps=self._eps,
            )
            return
        self._add_norm.launch(
            *row_blocks(residual),
            delta=f32_of(delta),
            residual=f32_of(residual),
            weight=vector_of(weight, residual.features),
            bias=optional_vector(bias, residual.features),
            out_sum=total,
            out=out,
            hidden_size=residual.features,
            eps=self._eps,
        )

    def norm_projection(
        self, x: Activation, weight: Weight, bias: Weight | None, eps: float | None = None
    ) -> None:
        """Norms rows of halves in place; they may be columns of a wider matrix."""
        self._norm_half.launch(
            *row_blocks(x),
            x=f16_of(x),
            weight=vector_of(weight, x.features),
            bias=optional_vector(bias, x.features),
            stride=x.stride or x.features,
            hidden_size=x.features,
            eps=self._eps if eps is None else eps,
        )


def norms_of(config: ModelConfig, library: KernelLibrary) -> RmsNorms | LayerNorms:
    """Returns the norms of this model's kind."""
    if config.norm is NormKind.LAYER:
        return LayerNorms(library, config.norm_eps)
    with_bias = None if config.tower is None else LayerNorms(library, config.norm_eps)
    return RmsNorms(library, config.norm_eps, with_bias)


def row_blocks(x: Activation) -> tuple[Dim3, int]:
    """Returns grid and block of a launch with a thread block for each row."""
    return (x.rows, 1, 1), norm_threads(x.features)


def norm_threads(features: int) -> int:
    """Returns the threads of a block for a row of a norm, which hold up to 16 elements each.

    Few waves have little to wait for each other.
    """
    assert features <= MAX_NORM_DIM, features
    return max(min(round_up(ceil_div(features, 4), 64), 256), round_up(ceil_div(features, 16), 64))


def sum_threads(features: int, most: int) -> int:
    """Returns those for a row that is added up first: as many loads as possible are under way."""
    return min(round_up(ceil_div(features, 4), 64), most)
