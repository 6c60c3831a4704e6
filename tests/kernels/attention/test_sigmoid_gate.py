"""rf_sigmoid_gate: x * sigmoid(gate) in place, in each form that x has."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.activations import SCALE_DTYPE, QuantisedActivation

ROWS = 3
FEATURES = {"part_of_one_block": 96, "one_block": 1024, "two_and_a_tail": 2048 + 160}


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
def test_rows_are_gated(device: Device, features: int, slices: int) -> None:
    """In float32 with the int8 form, or as halves, by columns of wider rows."""
    random = np.random.default_rng(3)
    x = random.standard_normal((ROWS, features)).astype(np.float32)
    gate = (4 * random.standard_normal((ROWS, features))).astype(np.float32)
    gate[0, :4] = [-100, 100, 0, 30]
    wide = np.full((ROWS, features + 12), np.nan, np.float32)
    wide[:, :features] = gate
    there, f32, f16 = device.upload(wide), device.upload(x), device.upload(x.astype(np.float16))
    q = device.empty((slices, ROWS, features), np.int8)
    scales = device.empty((slices, ROWS, features // 32), np.uint64)
    low = ROWS * features * (slices - 1)
    grid = -(-features // 1024), ROWS
    for forms in ((f32, None, q, scales, low), (None, f16, None, None, 0)):
        arguments = (there, *forms, np.int64(features + 12), features)
        device.launch("rf_sigmoid_gate", *arguments, grid=grid, block=256)
    factors = 1 / (1 + np.exp(-gate.astype(np.float64)))
    expected = x * factors
    check(f32.get(), expected, rtol=5e-6, atol=1e-30)
    check(f16.get(), x.astype(np.float16) * factors, rtol=6e-4, atol=6e-8)
    got = QuantisedActivation(q.get(), scales.get().view(SCALE_DTYPE)).values()
    blocks = np.abs(expected).reshape(ROWS, -1, 32).max(axis=-1).repeat(32, axis=-1)
    assert (np.abs(got - expected) <= (5e-3, 2e-5)[slices - 1] * blocks).all()
