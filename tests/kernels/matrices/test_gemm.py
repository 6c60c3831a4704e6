"""rf_gemm_* and rf_gemm_sum: linear layers for many rows.

Names of cases follow the kernel's loops: a block takes a tile of rows and 128 stored rows of the
matrix, and goes over K in steps of 32, two at a time. A tile of 32 rows of quantised weights goes
over K in steps of 128 or 256, and in two ways, for more than 16 rows and for fewer.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device
from tests.support.operands.gemm import check_bias, check_finite_halves, check_gemm
from tests.support.operands.linear import (
    GELU,
    GELU_TANH,
    SILU,
    random_activation,
    random_layer,
)
from tests.support.operands.weights import ALL_TYPES, block_features


@pytest.mark.parametrize("name", ALL_TYPES)
@pytest.mark.parametrize(
    ("rows", "out_features", "blocks"), [(32, 32, 1), (5, 37, 3)], ids=["one_block", "ragged_tails"]
)
def test_multiplies(device: Device, name: str, rows: int, out_features: int, blocks: int) -> None:
    rng = np.random.default_rng(0)
    in_features = blocks * block_features(name)
    layer = random_layer(rng, name, out_features, in_features)
    check_gemm(device, layer, random_activation(rng, rows, in_features))


@pytest.mark.parametrize("factor", [2.0**-14, 2.0**14], ids=["small", "large"])
@pytest.mark.parametrize(("name", "tile"), [("q4_k", 32), ("q4_k", 64), ("f16", 32)])
def test_activations_may_be_small_or_large(
    device: Device, name: str, tile: int, factor: float
) -> None:
    """Some of them as small as matrix instructions of MI200 take no half, or the largest halves."""
    rng = np.random.default_rng(8)
    layer = random_layer(rng, name, 40, 256)
    x = random_activation(rng, 20, 256) * np.float32(16 * factor)
    check_gemm(device, layer, np.clip(x, -65504, 65504), tile=tile)


@pytest.mark.parametrize("tile", [32, 64, 128])
def test_tiles_cover_rows_and_columns(device: Device, tile: int) -> None:
    rng = np.random.default_rng(1)
    layer = random_layer(rng, "q8_0", 150, 64)
    check_gemm(device, layer, random_activation(rng, tile + 3, 64), tile=tile)


@pytest.mark.parametrize(
    "quant_blocks", [2, 3, 8, 17], ids=["even", "odd", "eight", "many_and_odd"]
)
@pytest.mark.parametrize("name", ["f16", "q4_0"])
@pytest.mark.parametrize("rows", [3, 17], ids=["half_a_tile", "a_tile"])
def test_steps_through_k(device: Device, name: str, quant_blocks: int, rows: int) -> None:
    rng = np.random.default_rng(2)
    layer = random_layer(rng, name, 32, 32 * quant_blocks)
    check_gemm(device, layer, random_activation(rng, rows, 32 * quant_blocks))


@pytest.mark.parametrize("rows", [16, 32, 33, 49])
def test_tiles_of_few_rows(device: Device, rows: int) -> None:
    rng = np.random.default_rng(7)
    layer = random_layer(rng, "q5_k", 136, 512)
    check_gemm(device, layer, random_activation(rng, rows, 512))


@pytest.mark.parametrize("name", ["bf16", "q4_k"])
@pytest.mark.parametrize("tile", [32, 64, 128])
@pytest.mark.parametrize("activation", [SILU, GELU_TANH, GELU], ids=["silu", "gelu_tanh", "gelu"])
def test_gates(device: Device, name: str, tile: int, activation: int) -> None:
    rng = np.random.default_rng(3)
    layer = random_layer(rng, name, 72, 256, activation)
    check_gemm(device, layer, random_activation(rng, 4, 256), tile=tile)


@pytest.mark.parametrize("splits", [2, 3])
@pytest.mark.parametrize("activation", [0, SILU], ids=["plain", "gated"])
@pytest.mark.parametrize(("name", "quant_blocks"), [("q5_1", 19), ("q6_k", 24)])
def test_blocks_may_share_k(
    device: Device, name: str, quant_blocks: int, splits: int, activation: int
) -> None:
    rng = np.random.default_rng(4)
    layer = random_layer(rng, name, 40, 32 * quant_blocks, activation)
    check_gemm(device, layer, random_activation(rng, 2, 32 * quant_blocks), splits=splits)


@pytest.mark.parametrize("splits", [1, 2])
def test_adds_a_bias(device: Device, splits: int) -> None:
    check_bias(device, np.random.default_rng(5), "q4_1", 3, 33, splits=splits)


@pytest.mark.parametrize("splits", [1, 2])
def test_writes_finite_halves(device: Device, splits: int) -> None:
    check_finite_halves(device, np.random.default_rng(6), "f32", 2, splits=splits)
