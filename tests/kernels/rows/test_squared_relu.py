"""rf_squared_relu: max(x, 0)^2 in place, in each form that x has."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.activations import SCALE_DTYPE, QuantisedActivation

ROWS = 3


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("features", [96, 1024, 2048 + 160])
def test_rows_are_squared(device: Device, features: int, slices: int) -> None:
    """In float32 with the int8 form, or as halves, which end at the largest finite one."""
    random = np.random.default_rng(3)
    x = random.standard_normal((ROWS, features)).astype(np.float32)
    x[0, :4] = [-100, 100, 0, 300]
    f32, f16 = device.upload(x), device.upload(x.astype(np.float16))
    q = device.empty((slices, ROWS, features), np.int8)
    scales = device.empty((slices, ROWS, features // 32), np.uint64)
    low = ROWS * features * (slices - 1)
    for forms in ((f32, None, q, scales, low), (None, f16, None, None, 0)):
        grid = -(-ROWS * features // 1024), 1
        device.launch("rf_squared_relu", *forms, np.int64(ROWS * features), grid=grid, block=256)
    expected = np.maximum(x.astype(np.float64), 0) ** 2
    check(f32.get(), expected, rtol=1e-6, atol=0)
    halves = np.minimum(np.maximum(x.astype(np.float16).astype(np.float64), 0) ** 2, 65504)
    check(f16.get(), halves, rtol=6e-4, atol=6e-8)
    got = QuantisedActivation(q.get(), scales.get().view(SCALE_DTYPE)).values()
    blocks = np.abs(expected).reshape(ROWS, -1, 32).max(axis=-1).repeat(32, axis=-1)
    assert (np.abs(got - expected) <= (5e-3, 2e-5)[slices - 1] * blocks).all()
