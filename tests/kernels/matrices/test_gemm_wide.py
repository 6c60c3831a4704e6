"""rf_gemm_wide_* and rf_gemm_*_r128: linear layers for many rows, multiplied in warpgroups.

Names of cases follow the kernels' loops: a block takes 256 or 272 rows, or up to 128, and 128
stored rows of the matrix, and goes over K in steps of 64, two at a time; tiles of x are on their
way for three steps.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.gemm import (
    PAIRED,
    WIDE,
    check_bias,
    check_finite_halves,
    check_gemm,
    gemm,
)
from tests.support.operands.linear import (
    CLAMPED_SWIGLU,
    GELU,
    GELU_TANH,
    SILU,
    random_activation,
    random_layer,
)
from tests.support.operands.weights import QUANTISED_TYPES, block_features

# An offset and super-blocks; a codebook.
_ON_HOST = ("q4_k", "iq3_s")


@pytest.mark.parametrize("name", QUANTISED_TYPES)
@pytest.mark.parametrize(
    ("tile", "rows", "on_host", "out_features", "steps"),
    [
        (256, 256, 256, 128, 4),
        (256, 1024 + 100, 256 + 37, 128 + 37, 12),
        (272, 1024 + 37, 256 + 9, 128 + 37, 12),
    ],
    ids=["one_block", "ragged_tails", "ragged_tails_of_large_tiles"],
)
def test_multiplies(
    hopper: Device, name: str, tile: int, rows: int, on_host: int, out_features: int, steps: int
) -> None:
    rng = np.random.default_rng(0)
    if hopper.host is not None:
        if name not in _ON_HOST:
            pytest.skip("compiling all types takes the host long")
        rows = on_host
    assert 64 * steps % block_features(name) == 0
    layer = random_layer(rng, name, out_features, 64 * steps)
    x = random_activation(rng, rows, 64 * steps)
    check_gemm(hopper, layer, x, tile=tile, grouped=False)


@pytest.mark.parametrize(
    ("rows", "steps", "out_features", "activation", "splits"),
    [
        (65, 4, 128, 0, 1),
        (100, 12, 128 + 37, 0, 2),
        (127, 8, 72, SILU, 2),
        (128, 4, 300, 0, 1),
    ],
)
def test_blocks_may_share_a_multiprocessor(
    hopper: Device, rows: int, steps: int, out_features: int, activation: int, splits: int
) -> None:
    rng = np.random.default_rng(8)
    layer = random_layer(rng, "q4_k", out_features, 64 * steps, activation)
    x = random_activation(rng, rows, 64 * steps)
    check_gemm(hopper, layer, x, tile=PAIRED, grouped=False, splits=splits)


@pytest.mark.parametrize("tile", WIDE)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 9, 17])
def test_steps_through_k(hopper: Device, tile: int, steps: int) -> None:
    rng = np.random.default_rng(1)
    layer = random_layer(rng, "mxfp4", 96, 64 * steps)
    check_gemm(hopper, layer, random_activation(rng, 40, 64 * steps), tile=tile, grouped=False)


@pytest.mark.parametrize(
    ("tile", "rows"),
    [
        *((256, rows) for rows in (1, 31, 255, 256, 257, 512, 513)),
        *((272, rows) for rows in (257, 271, 272, 273, 544, 545)),
    ],
)
def test_tiles_cover_rows(hopper: Device, tile: int, rows: int) -> None:
    rng = np.random.default_rng(2)
    layer = random_layer(rng, "q6_k", 300, 512)
    check_gemm(hopper, layer, random_activation(rng, rows, 512), tile=tile, grouped=False)


@pytest.mark.parametrize("name", ["q4_k", "mxfp4"])
@pytest.mark.parametrize("activation", [SILU, GELU_TANH, GELU, CLAMPED_SWIGLU])
def test_gates(hopper: Device, name: str, activation: int) -> None:
    rng = np.random.default_rng(3)
    layer = random_layer(rng, name, 72, 256, activation)
    check_gemm(hopper, layer, random_activation(rng, 300, 256), tile=256, grouped=False)


@pytest.mark.parametrize("tile", WIDE)
@pytest.mark.parametrize(("splits", "steps"), [(2, 20), (3, 24)])
@pytest.mark.parametrize("activation", [0, SILU], ids=["plain", "gated"])
def test_blocks_may_share_k(
    hopper: Device, splits: int, steps: int, activation: int, tile: int
) -> None:
    rng = np.random.default_rng(4)
    layer = random_layer(rng, "q4_k", 140, 64 * steps, activation)
    x = random_activation(rng, 270, 64 * steps)
    check_gemm(hopper, layer, x, splits=splits, tile=tile, grouped=False)


def test_adds_a_bias(hopper: Device) -> None:
    check_bias(hopper, np.random.default_rng(5), "q6_k", 260, 133, tile=WIDE[-1], grouped=False)


def test_adds_biases_before_the_gate(hopper: Device) -> None:
    rng = np.random.default_rng(6)
    layer = random_layer(rng, "mxfp4", 76, 320, CLAMPED_SWIGLU)
    x = random_activation(rng, 260, 320).astype(np.float16)
    gate, up = (rng.standard_normal(76).astype(np.float32) for _ in range(2))
    out = hopper.empty((260, 76), np.float32, "out")
    gemm(hopper, layer, x, tile=WIDE[-1], grouped=False, biases=(gate, up), out=out)
    check(out.get(), layer.apply(x.astype(np.float64), (gate, up)), rtol=5e-3, atol=2e-2)


def test_writes_finite_halves(hopper: Device) -> None:
    check_finite_halves(hopper, np.random.default_rng(7), "q4_k", 258, tile=WIDE[-1], grouped=False)
