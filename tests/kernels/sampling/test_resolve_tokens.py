"""rf_resolve_tokens: ids from the host, or from what the previous step sampled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device


@pytest.mark.parametrize("count", [5, 256, 300], ids=["one_block", "full_block", "many_blocks"])
def test_takes_ids_from_where_they_are(device: Device, count: int) -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 1000, count, np.int32)
    previous = np.array([77, -1, 999], np.int32)  # the second row could not be sampled
    source = rng.integers(-1, 3, count, np.int32)
    source[:4] = [-1, 0, 1, 2]
    tokens = device.empty(count, np.int32, "tokens")
    args = (device.upload(ids), device.upload(source), device.upload(previous), tokens, count)
    device.launch("rf_resolve_tokens", *args, grid=-(-count // 256), block=256)
    expected = np.where(source < 0, ids, np.maximum(previous, 0)[source])
    np.testing.assert_array_equal(tokens.get(), expected)
