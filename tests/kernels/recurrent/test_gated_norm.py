"""rf_gated_norm: norms of groups with a gate, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.activations import SCALE_DTYPE, QuantisedActivation

EPS = 1e-6


@pytest.mark.parametrize("gate_first", [False, True], ids=["delta", "mamba"])
@pytest.mark.parametrize(
    ("rows", "groups", "dim", "threads"),
    [(3, 4, 128, 64), (2, 1, 1056, 128), (1, 2, 32, 64), (5, 3, 288, 128), (2, 5, 64, 256)],
)
def test_groups_are_normed_and_gated(
    device: Device, rows: int, groups: int, dim: int, threads: int, gate_first: bool
) -> None:
    random = np.random.default_rng(8)
    width = groups * dim
    x, z = (random.standard_normal((rows, width)).astype(np.float32) for _ in range(2))
    weight = random.standard_normal((groups if gate_first else 1, dim)).astype(np.float32)
    wide_z = np.full((rows, width + 12), np.nan, np.float32)
    wide_z[:, :width] = z
    f32, f16 = device.empty((rows, width), np.float32), device.empty((rows, width), np.float16)
    q = device.empty((2, rows, width), np.int8)
    scales = device.empty((2, rows, width // 32), np.uint64)
    of_block = threads // device.wave if dim <= 4 * device.wave else 1
    device.launch(
        "rf_gated_norm",
        *(device.upload(x), device.upload(wide_z), device.upload(weight)),
        *(f32, f16, q, scales, rows * width, width + 12, groups, dim),
        *(dim if gate_first else 0, int(gate_first), EPS),
        grid=(rows, -(-groups // of_block)),
        block=threads,
    )
    values, gate = x.astype(np.float64), z / (1 + np.exp(-z.astype(np.float64)))
    of_groups = (values * gate if gate_first else values).reshape(rows, groups, dim)
    normed = of_groups / np.sqrt((of_groups**2).mean(axis=-1, keepdims=True) + EPS) * weight
    expected = normed.reshape(rows, width) * (1 if gate_first else gate)
    check(f32.get(), expected, rtol=5e-6, atol=1e-6)
    check(f16.get(), expected, rtol=6e-4, atol=1e-6)
    got = QuantisedActivation(q.get(), scales.get().view(SCALE_DTYPE)).values()
    check(got, expected, atol=2e-4 * np.abs(expected).max())
