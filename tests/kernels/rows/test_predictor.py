"""rf_store_hidden and rf_beside_hidden: hidden states kept by slots, found for the next token."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check
from tests.support.operands.activations import SCALE_DTYPE, QuantisedActivation
from tests.support.operands.norms import random_rows

EPS = 1e-5
ROWS = 4
SLOTS = np.array([5, -1, 0, 3], np.int64)  # the second row is padding
WIDTHS = {"part_of_one_block": (96, 64), "one_block": (1024, 256), "a_tail": (1024 + 160, 128)}


@pytest.mark.parametrize("width", [32, 1024, 1024 + 160])
def test_rows_are_kept_as_halves_where_their_tokens_are(device: Device, width: int) -> None:
    x = random_rows(ROWS, width)
    x[0, :2] = [1e6, -1e6]
    old = random_rows(7, width, seed=2).astype(np.float16)
    kept = device.upload(old)
    arguments = device.upload(x), device.upload(SLOTS), kept, width
    device.launch("rf_store_hidden", *arguments, grid=(-(-width // 1024), ROWS), block=256)
    want = old.copy()
    want[[5, 0, 3]] = np.clip(x[[0, 2, 3]], -65504, 65504)
    np.testing.assert_array_equal(kept.get(), want)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize(("width", "threads"), WIDTHS.values(), ids=WIDTHS.keys())
def test_a_row_and_the_one_before_it_are_normed_side_by_side(
    device: Device, width: int, threads: int, slices: int
) -> None:
    """The second row has none before it: zeros."""
    x, kept = random_rows(ROWS, width), random_rows(7, width, seed=2).astype(np.float16)
    weights = random_rows(2, width, seed=3)
    f32 = device.empty((ROWS, 2 * width), np.float32)
    f16 = device.empty((ROWS, 2 * width), np.float16)
    q = device.empty((slices, ROWS, 2 * width), np.int8)
    scales = device.empty((slices, ROWS, 2 * width // 32), np.uint64)
    low = 2 * ROWS * width * (slices - 1)
    given = [device.upload(each) for each in (x, kept, SLOTS, weights[0], weights[1])]
    forms = f32, f16, q, scales, low
    device.launch("rf_beside_hidden", *given, *forms, width, EPS, grid=(ROWS, 2), block=threads)
    hidden = np.where(SLOTS[:, None] < 0, 0, kept[SLOTS]).astype(np.float64)
    parts = zip((x.astype(np.float64), hidden), weights.astype(np.float64), strict=True)
    want = np.concatenate([ops.rms_norm(rows, weight, EPS) for rows, weight in parts], axis=1)
    check(f32.get(), want, rtol=3e-6)
    check(f16.get(), want, rtol=6e-4, atol=1e-7)
    got = QuantisedActivation(q.get(), scales.get().view(SCALE_DTYPE)).values()
    blocks = np.abs(want).reshape(ROWS, -1, 32).max(axis=-1).repeat(32, axis=-1)
    assert (np.abs(got - want) <= (5e-3, 2e-5)[slices - 1] * blocks + 1e-30).all()
