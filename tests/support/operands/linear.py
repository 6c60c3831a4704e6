"""What tests of linear layers share: a layer with its oracle in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rocmforge.models.config import ActivationFunction
from rocmforge_reference import ops
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import quantise
from tests.support.operands.weights import (
    FLOAT_TYPES,
    Bytes,
    Matrix,
    gated_rows,
    random_matrix,
    round_up,
)

NOT_GATED, SILU, GELU_TANH, GELU, CLAMPED_SWIGLU, SQUARED_RELU = 0, 1, 2, 3, 4, 5
_UNGATED = (NOT_GATED, SQUARED_RELU)
_ACTIVATIONS = {
    SILU: ActivationFunction.SILU,
    GELU_TANH: ActivationFunction.GELU_TANH,
    GELU: ActivationFunction.GELU,
    CLAMPED_SWIGLU: ActivationFunction.CLAMPED_SWIGLU,
}

_ROUNDING = 2e-6  # of float32 sums of a few hundred terms, relative to their magnitude

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer, or the gate and up projections of a gated one."""

    weights: tuple[Matrix, ...]
    activation: int

    @property
    def out_features(self) -> int:
        """Features of the result."""
        return self.weights[0].rows

    @property
    def quant_blocks(self) -> int:
        """Quant blocks in K."""
        return self.weights[0].quant_blocks

    @property
    def stored_rows(self) -> int:
        """Rows of the matrix on the device."""
        if self.activation in _UNGATED:
            return round_up(self.out_features, 32)
        return round_up(self.out_features, 16) * 2

    def packed(self) -> Bytes:
        """The matrix on the device."""
        if self.activation in _UNGATED:
            return self.weights[0].packed()
        gate, up = self.weights
        both = Matrix(gate.name, np.concatenate((gate.raw, up.raw)), gate.in_features)
        return both.packed(np.concatenate(gated_rows(gate.rows)), self.stored_rows)

    def apply(self, x: Float64, biases: tuple[Float32, ...] = ()) -> Float64:
        """The result for [rows, K], with a bias of each of the weights or none."""
        products: list[Float64] = [x @ weight.values().T for weight in self.weights]
        for product, bias in zip(products, biases, strict=False):
            product += bias
        if self.activation in _UNGATED:
            squared: Float64 = np.maximum(products[0], 0) ** 2
            return products[0] if self.activation == NOT_GATED else squared
        return self.gate(*products)

    def gate(self, gate: Float64, up: Float64) -> Float64:
        """What the activation makes of the products with gate and up."""
        return ops.gated(gate, up, _ACTIVATIONS[self.activation])

    def magnitude(self, x: Float64) -> Float64:
        """The sums of absolute values behind the result: what rounding errors are relative to."""
        products: list[Float64] = [np.abs(x) @ np.abs(weight.values()).T for weight in self.weights]
        if self.activation in _UNGATED:
            return products[0] if self.activation == NOT_GATED else 2 * products[0] ** 2
        # All activations have a slope below 1.2, so errors of gate and up add up to less than:
        more = 1.0 if self.activation == CLAMPED_SWIGLU else 0.0  # it adds that to up
        return 2.4 * products[0] * (products[1] + more)


def random_layer(
    rng: np.random.Generator,
    name: str,
    out_features: int,
    in_features: int,
    activation: int = NOT_GATED,
) -> Layer:
    """A layer whose results are of the order of 1 for activations of the order of 1."""
    count = 1 if activation in _UNGATED else 2
    weights = tuple(random_matrix(rng, name, out_features, in_features) for _ in range(count))
    return Layer(weights, activation)


def random_activation(rng: np.random.Generator, rows: int, in_features: int) -> Float32:
    """[rows, in_features], scaled so that sums over the features stay of the order of 1."""
    values = rng.standard_normal((rows, in_features), np.float32)
    values /= np.float32(np.sqrt(in_features))
    return values


def worst_error(actual: Float32, expected: Float64, magnitude: Float64) -> float:
    """The largest error, relative to the magnitude of what was added up."""
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    return float(np.max(np.abs(actual - expected) / magnitude))


def seen_by_few(layer: Layer, x: Float32, slices: int = 1) -> Float64:
    """The values of x that kernels for few rows multiply with: of quantised formats, in int8."""
    if layer.weights[0].name in FLOAT_TYPES:
        return x.astype(np.float64)
    return quantise(x, slices).values()


def check_few(actual: Float32, layer: Layer, x: Float32, slices: int = 1) -> None:
    """Checks what a kernel for few rows made of x."""
    seen = seen_by_few(layer, x, slices)
    assert worst_error(actual, layer.apply(seen), layer.magnitude(seen)) < _ROUNDING


def multiply_few(
    device: Device,
    kernel: str,
    layer: Layer,
    x: Float32,
    *,
    slices: int = 1,
    block: int = 64,
    block_rows: int = 16,
    grid: int | None = None,
    bias: Float32 | None = None,
    others: tuple[DeviceArray | float | None, ...] = (),
    out_halves: tuple[DeviceArray | None, ...] = (),
) -> Float32:
    """What a kernel for few rows makes of x, as it is or, of quantised formats, in int8.

    block_rows: stored rows of a block, unless a grid is given. others: arguments behind those that
    all of these kernels have. out_halves: one argument for kernels
    that may write halves.
    """
    rows = x.shape[0]
    out = device.empty((rows, layer.out_features), np.float32, "out")
    activations: tuple[DeviceArray, ...] = (device.upload(x, "x"),)
    counts: tuple[int, ...] = (rows,)
    if layer.weights[0].name not in FLOAT_TYPES:
        quantised = quantise(x, slices)
        activations = (device.upload(quantised.q, "q"), device.upload(quantised.scales, "scale"))
        counts = (rows, slices)
    device.launch(
        kernel,
        device.upload(layer.packed(), "weight"),
        *activations,
        device.upload(bias, "bias") if bias is not None else None,
        out,
        *out_halves,
        *counts,
        layer.out_features,
        layer.quant_blocks,
        layer.activation,
        *others,
        grid=grid or layer.stored_rows // block_rows,
        block=block,
    )
    return out.get()
