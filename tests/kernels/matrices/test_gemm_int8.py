"""rf_gemm_int8_*: linear layers for 1 to 16 rows, on int8 matrix instructions.

As for GEMV, the int8 activations are part of the operation. Names of cases follow the kernel's
loops: a wave takes steps of four chunks of K (two on some GPUs), and the last may begin earlier.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.linear import (
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
from tests.support.operands.weights import QUANTISED_TYPES, block_features

Float32 = npt.NDArray[np.float32]


def _gemm(
    device: Device,
    layer: Layer,
    x: Float32,
    *,
    slices: int = 1,
    block: int = 64,
    bias: Float32 | None = None,
    wide: int = 0,
    out_half: DeviceArray | None = None,
) -> Float32:
    """wide: the rows that the kernel for blocks of 32 stored rows is for; 0 = the other one."""
    kernel, block_rows = f"rf_gemm_int8_{layer.weights[0].name}", 16
    if wide:
        kernel, block_rows = f"rf_gemm_int8_wide_{layer.weights[0].name}_r{wide}", 32
        block = device.max_threads(kernel)
    return multiply_few(
        device,
        kernel,
        layer,
        x,
        slices=slices,
        block=block,
        block_rows=block_rows,
        bias=bias,
        out_halves=(out_half,),
        others=(None, 0.0),
    )


def _check(
    device: Device, layer: Layer, x: Float32, *, slices: int = 1, block: int = 64, wide: int = 0
) -> None:
    check_few(_gemm(device, layer, x, slices=slices, block=block, wide=wide), layer, x, slices)


@pytest.mark.parametrize("name", QUANTISED_TYPES)
@pytest.mark.parametrize(
    ("rows", "out_features", "quant_blocks"),
    [(1, 32, 8), (5, 37, 24), (8, 40, 56)],
    ids=["one_row", "ragged_width_and_absent_rows", "many_steps"],
)
def test_multiplies(
    device: Device, name: str, rows: int, out_features: int, quant_blocks: int
) -> None:
    rng = np.random.default_rng(0)
    layer = random_layer(rng, name, out_features, 32 * quant_blocks)
    _check(device, layer, random_activation(rng, rows, 32 * quant_blocks))


@pytest.mark.parametrize("name", QUANTISED_TYPES)
@pytest.mark.parametrize(
    ("rows", "wide", "out_features", "quant_blocks"),
    [(5, 8, 37, 24), (16, 16, 40, 56)],
    ids=["ragged_width_and_absent_rows", "all_rows_and_many_steps"],
)
def test_multiplies_with_waves_side_by_side(
    device: Device, name: str, rows: int, wide: int, out_features: int, quant_blocks: int
) -> None:
    rng = np.random.default_rng(8)
    layer = random_layer(rng, name, out_features, 32 * quant_blocks)
    _check(device, layer, random_activation(rng, rows, 32 * quant_blocks), wide=wide)


@pytest.mark.parametrize("quant_blocks", [8, 32, 40, 72], ids=["one_wave", "even", "odd", "ragged"])
@pytest.mark.parametrize("wide", [8, 16])
def test_waves_side_by_side_wait_for_those_with_more_steps(
    device: Device, wide: int, quant_blocks: int
) -> None:
    rng = np.random.default_rng(9)
    layer = random_layer(rng, "q4_k", 64, 32 * quant_blocks)
    _check(device, layer, random_activation(rng, wide - 1, 32 * quant_blocks), wide=wide)


@pytest.mark.parametrize("out_features", [16, 72], ids=["one_block", "ragged_tail"])
def test_gates_with_waves_side_by_side(device: Device, out_features: int) -> None:
    rng = np.random.default_rng(10)
    layer = random_layer(rng, "q5_k", out_features, 512, SILU)
    _check(device, layer, random_activation(rng, 7, 512), slices=2, wide=16)


def test_writes_halves(device: Device) -> None:
    rng = np.random.default_rng(11)
    layer = random_layer(rng, "q4_k", 64, 512)
    halves = device.empty((9, 64), np.float16, "out_half")
    x = random_activation(rng, 9, 512)
    floats = _gemm(device, layer, x, wide=16, out_half=halves)
    np.testing.assert_array_equal(halves.get(), floats.astype(np.float16))


@pytest.mark.parametrize("name", ["q8_0", "q1_0", "q5_1"])
@pytest.mark.parametrize("more", [1, 2, 3])
def test_counts_nothing_twice_where_the_last_step_begins_earlier(
    device: Device, name: str, more: int
) -> None:
    rng = np.random.default_rng(1)
    in_features = 256 + more * block_features(name)
    layer = random_layer(rng, name, 16, in_features)
    _check(device, layer, random_activation(rng, 3, in_features), block=128)


@pytest.mark.parametrize("name", ["q4_1", "q6_k", "q2_k"])
@pytest.mark.parametrize("rows", [1, 4])
def test_multiplies_both_slices(device: Device, name: str, rows: int) -> None:
    rng = np.random.default_rng(7)
    layer = random_layer(rng, name, 40, 512)
    _check(device, layer, random_activation(rng, rows, 512), slices=2, block=128)


@pytest.mark.parametrize("name", ["q6_k", "mxfp4"])
@pytest.mark.parametrize("activation", [SILU, GELU_TANH], ids=["silu", "gelu_tanh"])
@pytest.mark.parametrize("out_features", [16, 72], ids=["one_tile", "ragged_tail"])
def test_gates(device: Device, name: str, activation: int, out_features: int) -> None:
    rng = np.random.default_rng(2)
    layer = random_layer(rng, name, out_features, 512, activation)
    _check(device, layer, random_activation(rng, 4, 512), slices=2)


@pytest.mark.parametrize("block", [64, 128, 256])
def test_waves_of_a_block_share_k(device: Device, block: int) -> None:
    rng = np.random.default_rng(4)
    layer = random_layer(rng, "q4_k", 16, 2560)
    _check(device, layer, random_activation(rng, 2, 2560), block=block)


def test_adds_a_bias(device: Device) -> None:
    rng = np.random.default_rng(3)
    layer = random_layer(rng, "q4_0", 33, 256)
    x = random_activation(rng, 2, 256)
    bias = rng.standard_normal(33).astype(np.float32)
    expected = layer.apply(seen_by_few(layer, x)) + bias
    np.testing.assert_allclose(_gemm(device, layer, x, bias=bias), expected, rtol=1e-5, atol=1e-5)


def test_extreme_codes_do_not_overflow(device: Device) -> None:
    """All codes and activations at their largest, with equal signs."""
    layer = random_layer(np.random.default_rng(6), "q8_0", 16, 1024, NOT_GATED)
    blocks = layer.weights[0].raw.reshape(16, -1, 34)
    blocks[:, :, 2:] = 0x80  # -128
    _check(device, layer, np.full((1, 1024), -3.0, np.float32))
