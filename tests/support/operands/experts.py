"""What tests of experts share: the networks of a layer on the device, and their oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import quantise
from tests.support.operands.linear import CLAMPED_SWIGLU, NOT_GATED, Layer, random_layer
from tests.support.operands.weights import FLOAT_TYPES, Bytes

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """A layer of each expert: gate and up, or down."""

    experts: tuple[Layer, ...]
    biases: tuple[Float32, ...]  # of each weight of a layer, [experts, out_features]; or none

    @property
    def first(self) -> Layer:
        """One of them, for what all have in common."""
        return self.experts[0]

    def packed(self) -> Bytes:
        """The matrices on the device, one expert after the other."""
        return np.stack([expert.packed() for expert in self.experts])

    def seen(self, x: Float32, slices: int = 1) -> Float64:
        """The activation that kernels for few tokens multiply with."""
        if self.first.weights[0].name in FLOAT_TYPES:
            return x.astype(np.float64)
        return quantise(x, slices).values()

    def apply(self, expert: int, x: Float64) -> tuple[Float64, Float64]:
        """What an expert makes of a row, and the sums of absolute values behind that."""
        layer = self.experts[expert]
        result, magnitude = layer.apply(x[None])[0], layer.magnitude(x[None])[0]
        if self.biases:
            of = [bias[expert].astype(np.float64) for bias in self.biases]
            products = [
                x @ weight.values().T + bias for weight, bias in zip(layer.weights, of, strict=True)
            ]
            sizes = [
                np.abs(x) @ np.abs(weight.values()).T + np.abs(bias)
                for weight, bias in zip(layer.weights, of, strict=True)
            ]
            result, magnitude = products[0], sizes[0]
            if layer.activation != NOT_GATED:
                result, magnitude = layer.gate(*products), 2.4 * sizes[0] * sizes[1]
        if layer.activation == CLAMPED_SWIGLU:  # up + 1, and a slope of 1.702 in the sigmoid
            magnitude = 2 * magnitude + 4
        return result, magnitude


def random_experts(
    rng: np.random.Generator,
    count: int,
    name: str,
    out_features: int,
    in_features: int,
    activation: int = NOT_GATED,
    *,
    has_biases: bool = False,
) -> ExpertLayer:
    """Experts whose results are of the order of 1 for activations of the order of 1."""
    experts = tuple(
        random_layer(rng, name, out_features, in_features, activation) for _ in range(count)
    )
    biases = tuple(
        rng.standard_normal((count, out_features)).astype(np.float32)
        for _ in experts[0].weights
        if has_biases
    )
    return ExpertLayer(experts, biases)


def upload_experts(
    device: Device, packed: Bytes, *, scattered: bool = False
) -> tuple[DeviceArray, DeviceArray | None]:
    """The matrices of experts on the device and where each is: the arguments `weight` and `places`.

    Scattered, they are in another order, with what belongs to nobody between them.
    """
    if not scattered:
        return device.upload(packed, "weight"), None
    count, nbytes = packed.shape[0], packed[0].nbytes
    order = np.random.default_rng(count).permutation(count)
    mixed = np.full((2 * count, nbytes), 0xFF, np.uint8)
    mixed[2 * order] = packed.reshape(count, nbytes)
    places = (2 * order * nbytes).astype(np.int64)
    return device.upload(mixed, "weight"), device.upload(places, "places")


def random_choice(rng: np.random.Generator, tokens: int, experts: int, chosen: int) -> Int32:
    """Different experts of each token."""
    return np.array([rng.permutation(experts)[:chosen] for _ in range(tokens)], np.int32)
