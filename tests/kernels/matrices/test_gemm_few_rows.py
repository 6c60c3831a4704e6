"""Up to 64 rows, multiplied in warpgroups of Hopper GPUs: rf_gemm_*_r16, _r32 and _r64, and _m64.

Names of cases follow the kernels' loops: a block takes up to 16, 32 or 64 rows, or with groups 8,
16, 32, 48 or 64, and 128 stored rows of the matrix. It goes over K in steps of 256, of which a lane
has a quarter, and begins at a step of its own. With experts:
tests/kernels/experts/test_grouped_gemm.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device
from tests.support.operands.gemm import FEW, check_bias, check_finite_halves, check_gemm
from tests.support.operands.linear import (
    CLAMPED_SWIGLU,
    GELU,
    GELU_TANH,
    SILU,
    random_activation,
    random_layer,
)
from tests.support.operands.weights import QUANTISED_TYPES, block_features


@pytest.mark.parametrize("name", QUANTISED_TYPES)
def test_multiplies(hopper: Device, name: str) -> None:
    rng = np.random.default_rng(0)
    in_features = max(block_features(name), 32) * (2 if block_features(name) > 32 else 11)
    layer = random_layer(rng, name, 37, in_features)
    x = random_activation(rng, 37, in_features)
    check_gemm(hopper, layer, x, tile=64)
    for most in FEW:
        check_gemm(hopper, layer, x[:most], tile=most, grouped=False)


@pytest.mark.parametrize("rows", [1, 8, 9, 15, 16, 17, 31, 32, 33, 48, 49, 63, 64, 65])
def test_tiles_cover_rows(hopper: Device, rows: int) -> None:
    rng = np.random.default_rng(1)
    layer = random_layer(rng, "q4_k", 33, 512)
    check_gemm(hopper, layer, random_activation(rng, rows, 512), tile=64)


@pytest.mark.parametrize(
    ("most", "rows"), [(16, 1), (16, 15), (16, 16), (32, 17), (32, 32), (64, 33), (64, 64)]
)
@pytest.mark.parametrize("name", ["q4_k", "q6_k", "q8_0"])
def test_kernels_for_few_rows_cover_them(hopper: Device, name: str, most: int, rows: int) -> None:
    rng = np.random.default_rng(8)
    layer = random_layer(rng, name, 33, 512)
    check_gemm(hopper, layer, random_activation(rng, rows, 512), tile=most, grouped=False)


@pytest.mark.parametrize("quant_blocks", [1, 2, 7, 8, 9, 15, 16, 17, 31])
@pytest.mark.parametrize(
    ("name", "rows", "tile", "grouped"),
    [
        ("q8_0", 3, 16, False),
        ("q4_0", 20, 32, False),
        ("q8_0", 40, 64, False),
        ("q4_0", 20, 64, True),
        ("q8_0", 56, 64, True),
    ],
)
def test_steps_through_k(
    hopper: Device, name: str, rows: int, tile: int, quant_blocks: int, *, grouped: bool
) -> None:
    rng = np.random.default_rng(2)
    layer = random_layer(rng, name, 32, 32 * quant_blocks)
    x = random_activation(rng, rows, 32 * quant_blocks)
    check_gemm(hopper, layer, x, tile=tile, grouped=grouped)


@pytest.mark.parametrize("most", FEW)
@pytest.mark.parametrize("out_features", [127, 128, 129, 300])
def test_blocks_begin_at_steps_of_their_own(hopper: Device, most: int, out_features: int) -> None:
    rng = np.random.default_rng(3)
    layer = random_layer(rng, "q6_k", out_features, 1280)
    check_gemm(hopper, layer, random_activation(rng, 13, 1280), tile=most, grouped=False)


@pytest.mark.parametrize(("splits", "quant_blocks"), [(2, 19), (3, 24), (3, 40)])
@pytest.mark.parametrize("activation", [0, SILU], ids=["plain", "gated"])
@pytest.mark.parametrize("most", FEW)
def test_blocks_may_share_k(
    hopper: Device, splits: int, quant_blocks: int, activation: int, most: int
) -> None:
    rng = np.random.default_rng(4)
    layer = random_layer(rng, "q8_0", 140, 32 * quant_blocks, activation)
    x = random_activation(rng, min(most, 35), 32 * quant_blocks)
    check_gemm(hopper, layer, x, tile=most, grouped=False, splits=splits)


@pytest.mark.parametrize(("tile", "grouped"), [(32, False), (64, False), (64, True)])
@pytest.mark.parametrize("activation", [SILU, GELU_TANH, GELU, CLAMPED_SWIGLU])
def test_gates(hopper: Device, tile: int, activation: int, *, grouped: bool) -> None:
    rng = np.random.default_rng(5)
    layer = random_layer(rng, "q4_k", 72, 256, activation)
    check_gemm(hopper, layer, random_activation(rng, 20, 256), tile=tile, grouped=grouped)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("most", FEW)
def test_adds_a_bias(hopper: Device, most: int, splits: int) -> None:
    rng = np.random.default_rng(6)
    check_bias(hopper, rng, "q4_k", min(most, 18), 33, tile=most, grouped=False, splits=splits)


@pytest.mark.parametrize("most", FEW)
def test_writes_finite_halves(hopper: Device, most: int) -> None:
    rng = np.random.default_rng(7)
    check_finite_halves(hopper, rng, "q4_k", min(most, 18), tile=most, grouped=False)
