"""rf_gemm_wide_*: linear layers for very many rows, where the device multiplies in warpgroups.

Names of cases follow the kernel's loops: a block takes 256 rows and 128 stored rows of the matrix,
and goes over K in steps of 64, two at a time; tiles of x are on their way for three steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.kernels import Device, DeviceArray, check
from tests.support.linear import (
    CLAMPED_SWIGLU,
    GELU,
    GELU_TANH,
    SILU,
    Layer,
    random_activation,
    random_layer,
    worst_error,
)
from tests.support.weights import QUANTISED_TYPES, block_features

Float16 = npt.NDArray[np.float16]
Float32 = npt.NDArray[np.float32]
# Weights and their scales are rounded to halves, with 11 significant bits.
_ROUNDING = 2.0**-11
# An offset and super-blocks; a codebook.
_ON_HOST = ("q4_k", "iq3_s")


@pytest.fixture(autouse=True)
def _needs_the_kernels(device: Device) -> None:
    # The host does what the instructions are said to do.
    if device.wave != 32 or not device.has("rf_gemm_wide_q4_k"):
        pytest.skip("this device has no matrix instructions of warpgroups")


def _multiply(
    device: Device,
    layer: Layer,
    x: Float16,
    *,
    splits: int = 1,
    biases: tuple[Float32 | None, Float32 | None] = (None, None),
    out: DeviceArray | None = None,
    out_half: DeviceArray | None = None,
) -> None:
    rows = x.shape[0]
    split_quant_blocks = -(-layer.quant_blocks // (8 * splits)) * 8
    partial = None
    if splits > 1:
        partial = device.empty((splits, rows, layer.stored_rows), np.float32, "partial")
    bias, up_bias = (None if each is None else device.upload(each, "bias") for each in biases)
    kernel = f"rf_gemm_wide_{layer.weights[0].name}"
    device.launch(
        kernel,
        device.upload(layer.packed(), "weight"),
        device.upload(x, "x"),
        bias,
        up_bias,
        out,
        out_half,
        partial,
        rows,
        layer.out_features,
        layer.quant_blocks,
        layer.activation,
        split_quant_blocks,
        grid=(-(-rows // 256), -(-layer.stored_rows // 128), splits),
        block=device.max_threads(kernel),
    )
    if partial is not None:
        arguments = (bias, out, out_half, splits, layer.out_features, layer.activation)
        grid = (-(-layer.out_features // 256), rows)
        device.launch("rf_gemm_sum", partial, *arguments, grid=grid, block=256)


def _check(device: Device, layer: Layer, x: Float32, *, splits: int = 1) -> None:
    halves = x.astype(np.float16)
    out = device.empty((x.shape[0], layer.out_features), np.float32, "out")
    _multiply(device, layer, halves, splits=splits, out=out)
    seen = halves.astype(np.float64)
    assert worst_error(out.get(), layer.apply(seen), layer.magnitude(seen)) < _ROUNDING


@pytest.mark.parametrize("name", QUANTISED_TYPES)
@pytest.mark.parametrize(
    ("rows", "out_features", "steps"),
    [(256, 128, 4), (1024 + 37, 128 + 37, 12)],
    ids=["one_block", "ragged_tails"],
)
def test_multiplies(device: Device, name: str, rows: int, out_features: int, steps: int) -> None:
    rng = np.random.default_rng(0)
    if device.host is not None:
        if name not in _ON_HOST:
            pytest.skip("compiling all types takes the host long")
        rows = min(rows, 256 + 37)
    assert 64 * steps % block_features(name) == 0
    layer = random_layer(rng, name, out_features, 64 * steps)
    _check(device, layer, random_activation(rng, rows, 64 * steps))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 9, 17])
def test_steps_through_k(device: Device, steps: int) -> None:
    rng = np.random.default_rng(1)
    layer = random_layer(rng, "mxfp4", 96, 64 * steps)
    _check(device, layer, random_activation(rng, 40, 64 * steps))


@pytest.mark.parametrize("rows", [1, 31, 255, 257])
def test_tiles_cover_rows(device: Device, rows: int) -> None:
    rng = np.random.default_rng(2)
    layer = random_layer(rng, "q6_k", 300, 512)
    _check(device, layer, random_activation(rng, rows, 512))


@pytest.mark.parametrize("name", ["q4_k", "mxfp4"])
@pytest.mark.parametrize("activation", [SILU, GELU_TANH, GELU, CLAMPED_SWIGLU])
def test_gates(device: Device, name: str, activation: int) -> None:
    rng = np.random.default_rng(3)
    layer = random_layer(rng, name, 72, 256, activation)
    _check(device, layer, random_activation(rng, 300, 256))


@pytest.mark.parametrize(("splits", "steps"), [(2, 20), (3, 24)])
@pytest.mark.parametrize("activation", [0, SILU], ids=["plain", "gated"])
def test_blocks_may_share_k(device: Device, splits: int, steps: int, activation: int) -> None:
    rng = np.random.default_rng(4)
    layer = random_layer(rng, "q4_k", 140, 64 * steps, activation)
    _check(device, layer, random_activation(rng, 270, 64 * steps), splits=splits)


def test_adds_a_bias(device: Device) -> None:
    rng = np.random.default_rng(5)
    layer = random_layer(rng, "q6_k", 133, 512)
    x = random_activation(rng, 260, 512).astype(np.float16)
    bias = rng.standard_normal(133).astype(np.float32)
    out = device.empty((260, 133), np.float32, "out")
    _multiply(device, layer, x, biases=(bias, None), out=out)
    check(out.get(), layer.apply(x.astype(np.float64)) + bias, rtol=1e-3, atol=2e-2)


def test_adds_biases_before_the_gate(device: Device) -> None:
    rng = np.random.default_rng(6)
    layer = random_layer(rng, "mxfp4", 76, 320, CLAMPED_SWIGLU)
    x = random_activation(rng, 260, 320).astype(np.float16)
    gate, up = (rng.standard_normal(76).astype(np.float32) for _ in range(2))
    out = device.empty((260, 76), np.float32, "out")
    _multiply(device, layer, x, biases=(gate, up), out=out)
    check(out.get(), layer.apply(x.astype(np.float64), (gate, up)), rtol=5e-3, atol=2e-2)


def test_writes_finite_halves(device: Device) -> None:
    rng = np.random.default_rng(7)
    layer = random_layer(rng, "q4_k", 32, 512)
    x = random_activation(rng, 258, 512).astype(np.float16)
    bias = np.zeros(32, np.float32)
    bias[:2] = 1e6, -1e6
    out = device.empty((258, 32), np.float16, "out")
    _multiply(device, layer, x, biases=(bias, None), out_half=out)
    expected = np.clip(layer.apply(x.astype(np.float64)) + bias, -65504, 65504)
    check(out.get(), expected, rtol=1e-3, atol=1e-2)
