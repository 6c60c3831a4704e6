"""rf_gemm_int8_stream_*: products of up to 8 rows of int8 with large matrices, on Hopper GPUs.

As for GEMV, the int8 activations are part of the operation. Names of cases follow the kernel's
loops: a block has some tiles of 16 stored rows, which its 28 waves share, or else take in rounds.
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
)

Float32 = npt.NDArray[np.float32]
_KERNEL = "rf_gemm_int8_stream_q4_k"


def _gemm(
    device: Device,
    layer: Layer,
    x: Float32,
    *,
    blocks: int = 1,
    slices: int = 1,
    bias: Float32 | None = None,
    out_half: DeviceArray | None = None,
) -> Float32:
    return multiply_few(
        device,
        _KERNEL,
        layer,
        x,
        slices=slices,
        block=device.max_threads(_KERNEL),
        grid=blocks,
        bias=bias,
        out_halves=(out_half,),
        others=(None, 0.0),
    )


def _check(device: Device, layer: Layer, x: Float32, *, blocks: int = 1, slices: int = 1) -> None:
    check_few(_gemm(device, layer, x, blocks=blocks, slices=slices), layer, x, slices)


@pytest.mark.parametrize("rows", [1, 8])
def test_multiplies(hopper: Device, rows: int) -> None:
    rng = np.random.default_rng(0)
    layer = random_layer(rng, "q4_k", 37, 512)
    _check(hopper, layer, random_activation(rng, rows, 512), blocks=2)


@pytest.mark.parametrize(
    ("out_features", "blocks", "super_blocks"),
    [(32, 2, 3), (96, 2, 10), (464, 1, 1), (32, 5, 1)],
    ids=["a_tile_each", "waves_without_tiles", "rounds", "blocks_without_tiles"],
)
@pytest.mark.parametrize("activation", [NOT_GATED, SILU], ids=["plain", "gated"])
def test_waves_share_tiles(
    hopper: Device, out_features: int, blocks: int, super_blocks: int, activation: int
) -> None:
    rng = np.random.default_rng(1)
    in_features = 256 * super_blocks
    features = out_features // 2 if activation else out_features
    layer = random_layer(rng, "q4_k", features, in_features, activation)
    _check(hopper, layer, random_activation(rng, 5, in_features), blocks=blocks)


def test_takes_the_longest_rows(hopper: Device) -> None:
    rng = np.random.default_rng(2)
    layer = random_layer(rng, "q4_k", 32, 7168)
    _check(hopper, layer, random_activation(rng, 8, 7168))


def test_slices(hopper: Device) -> None:
    rng = np.random.default_rng(3)
    layer = random_layer(rng, "q4_k", 40, 512, GELU_TANH)
    _check(hopper, layer, random_activation(rng, 4, 512), slices=2)


def test_adds_a_bias_and_writes_halves(hopper: Device) -> None:
    rng = np.random.default_rng(4)
    layer = random_layer(rng, "q4_k", 70, 512)
    x = random_activation(rng, 5, 512)
    bias = rng.standard_normal(70).astype(np.float32)
    halves = hopper.empty((5, 70), np.float16, "out_half")
    floats = _gemm(hopper, layer, x, bias=bias, out_half=halves)
    np.testing.assert_array_equal(halves.get(), floats.astype(np.float16))
    without = _gemm(hopper, layer, x)
    np.testing.assert_allclose(floats, without + bias, rtol=1e-6, atol=1e-5)
