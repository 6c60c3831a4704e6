"""rf_gemv_*: linear layers for 1 to 8 rows.

The int8 activations are part of the operation, so the oracle multiplies their values with the
dequantised weights in float64. Names of cases follow the kernel's loops: a lane takes chunks of one
unit (two for 256-weight blocks), a block of 64 threads eight chunks of K at a time for 16 rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.linear import (
    GELU,
    GELU_TANH,
    NOT_GATED,
    SILU,
    Layer,
    check_few,
    multiply_few,
    random_activation,
    random_layer,
    seen_by_few,
)
from tests.support.operands.weights import ALL_TYPES, block_features

Float32 = npt.NDArray[np.float32]


def _gemv(
    device: Device,
    layer: Layer,
    x: Float32,
    *,
    slices: int = 1,
    variant: int = 0,
    block: int = 64,
    bias: Float32 | None = None,
) -> Float32:
    kernel = f"rf_gemv_{layer.weights[0].name}_r{variant or x.shape[0] * slices}"
    return multiply_few(device, kernel, layer, x, slices=slices, block=block, bias=bias)


def _check(
    device: Device,
    layer: Layer,
    x: Float32,
    *,
    slices: int = 1,
    variant: int = 0,
    block: int = 64,
) -> None:
    actual = _gemv(device, layer, x, slices=slices, variant=variant, block=block)
    check_few(actual, layer, x, slices)


@pytest.mark.parametrize("name", ALL_TYPES)
@pytest.mark.parametrize(
    ("rows", "variant", "out_features", "blocks"),
    [(1, 1, 32, 1), (2, 2, 37, 3), (3, 4, 16, 11), (8, 8, 40, 2)],
    ids=["one_block", "ragged_width", "many_blocks_and_an_absent_row", "eight_rows"],
)
def test_multiplies(
    device: Device, name: str, rows: int, variant: int, out_features: int, blocks: int
) -> None:
    rng = np.random.default_rng(0)
    in_features = blocks * block_features(name)
    layer = random_layer(rng, name, out_features, in_features)
    _check(device, layer, random_activation(rng, rows, in_features), variant=variant)


@pytest.mark.parametrize("name", ["q4_1", "q6_k"])
@pytest.mark.parametrize(
    ("rows", "variant"), [(1, 2), (2, 4), (3, 8), (4, 8)], ids=["one", "two", "absent", "four"]
)
def test_multiplies_both_slices(device: Device, name: str, rows: int, variant: int) -> None:
    rng = np.random.default_rng(7)
    layer = random_layer(rng, name, 40, 512)
    _check(device, layer, random_activation(rng, rows, 512), slices=2, variant=variant, block=128)


def test_gates_what_both_slices_make_together(device: Device) -> None:
    rng = np.random.default_rng(8)
    layer = random_layer(rng, "q4_k", 24, 512, SILU)
    _check(device, layer, random_activation(rng, 3, 512), slices=2, variant=8)


@pytest.mark.parametrize("name", ["q4_k", "q8_0"])
def test_two_slices_are_nearly_exact(device: Device, name: str) -> None:
    rng = np.random.default_rng(5)
    layer = random_layer(rng, name, 64, 1024)
    x = random_activation(rng, 2, 1024)
    exact = layer.apply(x.astype(np.float64))
    error = _gemv(device, layer, x, slices=2) - exact
    assert np.mean(error**2) < 1e-9 * np.mean(exact**2)


@pytest.mark.parametrize("name", ["f16", "q8_0", "q4_k"])
@pytest.mark.parametrize("block", [64, 128, 256])
def test_waves_of_a_block_share_k(device: Device, name: str, block: int) -> None:
    rng = np.random.default_rng(1)
    layer = random_layer(rng, name, 16, 1280)
    _check(device, layer, random_activation(rng, 1, 1280), block=block)


@pytest.mark.parametrize("name", ["bf16", "q6_k", "mxfp4"])
@pytest.mark.parametrize("activation", [SILU, GELU_TANH, GELU], ids=["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("out_features", [16, 72], ids=["one_tile", "ragged_tail"])
def test_gates(device: Device, name: str, activation: int, out_features: int) -> None:
    rng = np.random.default_rng(2)
    layer = random_layer(rng, name, out_features, 512, activation)
    _check(device, layer, random_activation(rng, 2, 512))


@pytest.mark.parametrize("name", ["f32", "q4_0"])
def test_adds_a_bias(device: Device, name: str) -> None:
    rng = np.random.default_rng(3)
    layer = random_layer(rng, name, 33, 64)
    x = random_activation(rng, 2, 64)
    bias = rng.standard_normal(33).astype(np.float32)
    actual = _gemv(device, layer, x, bias=bias)
    check(actual, layer.apply(seen_by_few(layer, x)) + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["q4_k", "q8_0"])
def test_int8_activations_cost_little(device: Device, name: str) -> None:
    rng = np.random.default_rng(5)
    layer = random_layer(rng, name, 64, 1024)
    x = random_activation(rng, 1, 1024)
    exact = layer.apply(x.astype(np.float64))
    error = _gemv(device, layer, x) - exact
    assert np.mean(error**2) < 1e-4 * np.mean(exact**2)


def test_extreme_codes_do_not_overflow(device: Device) -> None:
    """All codes and activations at their largest, with equal signs."""
    layer = random_layer(np.random.default_rng(6), "q8_0", 16, 1024, NOT_GATED)
    blocks = layer.weights[0].raw.reshape(16, -1, 34)
    blocks[:, :, 2:] = 0x80  # -128
    x = np.full((1, 1024), -3.0, np.float32)
    _check(device, layer, x)
