"""rf_sum_rows: out[i] = the sum of the rows of a range."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check

ROWS = 300

# dim, threads of a block, ranges
CASES = {
    "one_row": (32, 64, [(7, 8)]),
    "part_of_one_wave": (32, 256, [(0, 3), (297, 300)]),
    "wave_plus_one": (64, 64, [(1, 10)]),
    "ragged_columns": (100, 128, [(5, 90), (90, 91)]),
    "unrolled_loop_and_tail": (32, 64, [(0, 300), (2, 71)]),
    "whole_block": (96, 1024, [(0, 257)]),
    "empty_range": (32, 64, [(4, 4), (0, 1)]),
    "zero_ranges": (32, 64, []),
}


@pytest.mark.parametrize(("dim", "threads", "ranges"), CASES.values(), ids=CASES.keys())
def test_adds_up_rows(
    device: Device, dim: int, threads: int, ranges: list[tuple[int, int]]
) -> None:
    x = np.random.default_rng(1).standard_normal((ROWS, dim)).astype(np.float32)
    out = device.empty((len(ranges), dim), np.float32)
    if ranges:
        args = (device.upload(x), device.upload(np.array(ranges, np.int32)), out, dim)
        device.launch("rf_sum_rows", *args, grid=(-(-dim // 32), len(ranges)), block=threads)
    expected = [x[first:end].astype(np.float64).sum(axis=0) for first, end in ranges]
    check(out.get(), np.array(expected).reshape(len(ranges), dim), rtol=1e-6, atol=2e-5)


def test_a_nan_stays_in_its_range_and_column(device: Device) -> None:
    x = np.zeros((20, 32), np.float32)
    x[3, 5] = np.nan
    out = device.empty((2, 32), np.float32)
    ranges = np.array([(0, 4), (4, 20)], np.int32)
    args = (device.upload(x), device.upload(ranges), out, 32)
    device.launch("rf_sum_rows", *args, grid=(1, 2), block=64)
    assert np.argwhere(np.isnan(out.get())).tolist() == [[0, 5]]
