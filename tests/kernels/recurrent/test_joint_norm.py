"""rf_gated_squares, rf_joint_norm: the gated norm of a row that several devices have."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.activations import SCALE_DTYPE, QuantisedActivation

EPS = 1e-6


@pytest.mark.parametrize(
    ("rows", "parts", "dim", "threads"),
    [(3, 2, 128, 64), (2, 3, 1056, 128), (1, 2, 32, 64), (4, 4, 288, 128)],
    ids=["one_step", "ragged_tail", "idle_lanes", "four_devices"],
)
def test_parts_of_rows_are_normed_together(
    device: Device, rows: int, parts: int, dim: int, threads: int
) -> None:
    random = np.random.default_rng(8)
    width = parts * dim
    x, z = (random.standard_normal((rows, width)).astype(np.float32) for _ in range(2))
    x[:, :dim] *= 3  # the parts differ in size
    weight = random.standard_normal(width).astype(np.float32)
    gated = x * (z / (1 + np.exp(-z.astype(np.float64))))
    squares, inputs = np.zeros(rows, np.float32), []
    for part in range(parts):
        own = slice(part * dim, (part + 1) * dim)
        wide_z = np.full((rows, dim + 12), np.nan, np.float32)
        wide_z[:, :dim] = z[:, own]
        there = device.upload(np.ascontiguousarray(x[:, own])), device.upload(wide_z)
        sums = device.empty((rows,), np.float32)
        arguments = (*there, sums, dim + 12, dim)
        device.launch("rf_gated_squares", *arguments, grid=(rows,), block=threads)
        check(sums.get(), (gated[:, own] ** 2).sum(axis=1), rtol=5e-6)
        squares += sums.get()
        inputs.append((*there, device.upload(weight[own])))
    expected = gated / np.sqrt((gated**2).mean(axis=1, keepdims=True) + EPS) * weight
    for part in range(parts):
        f32, f16 = device.empty((rows, dim), np.float32), device.empty((rows, dim), np.float16)
        q = device.empty((2, rows, dim), np.int8)
        scales = device.empty((2, rows, dim // 32), np.uint64)
        device.launch(
            "rf_joint_norm",
            *(*inputs[part], device.upload(squares), f32, f16, q, scales, rows * dim),
            *(dim + 12, dim, width, EPS),
            grid=(rows,),
            block=threads,
        )
        wanted = expected[:, part * dim : (part + 1) * dim]
        check(f32.get(), wanted, rtol=5e-6, atol=1e-6)
        check(f16.get(), wanted, rtol=6e-4, atol=1e-6)
        got = QuantisedActivation(q.get(), scales.get().view(SCALE_DTYPE)).values()
        check(got, wanted, atol=2e-4 * np.abs(wanted).max())
