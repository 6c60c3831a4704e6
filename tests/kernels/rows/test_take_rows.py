"""rf_take_rows: out[i] = x[rows[i]]."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check

# dim, rows to take of 7
CASES = {
    "part_of_one_block": (32, [3]),
    "one_block": (256, [0, 6]),
    "many_blocks_ragged_tail": (260 + 256, [5, 5, 0]),
    "zero_rows": (32, []),
}


@pytest.mark.parametrize(("dim", "rows"), CASES.values(), ids=CASES.keys())
def test_takes_rows(device: Device, dim: int, rows: list[int]) -> None:
    x = np.random.default_rng(1).standard_normal((7, dim)).astype(np.float32)
    index = np.array(rows, np.int32)
    out = device.empty((len(rows), dim), np.float32)
    if rows:
        grid = (-(-dim // (4 * 64)), len(rows))
        args = (device.upload(x), device.upload(index), out, dim)
        device.launch("rf_take_rows", *args, grid=grid, block=64)
    check(out.get(), x[index])
