"""rf_copy_blocks: blocks of the KV cache copied to other blocks of every layer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import Device


@pytest.mark.parametrize(
    ("layers", "block_bytes", "pairs"),
    [
        pytest.param(1, 16, [(0, 1)], id="one_access"),
        pytest.param(1, 4096, [(2, 0)], id="one_block_of_threads"),
        pytest.param(2, 4112, [(0, 3)], id="ragged_tail"),
        pytest.param(3, 40960, [(5, 1), (5, 2), (4, 0)], id="many_steps_pairs_and_layers"),
    ],
)
def test_copies_the_named_blocks_of_every_layer(
    device: Device, layers: int, block_bytes: int, pairs: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 256, (layers, 6, block_bytes), np.uint8)
    device_pool = device.upload(pool, "pool")
    device.launch(
        "rf_copy_blocks",
        device_pool,
        device.upload(np.array(pairs, np.int32), "pairs"),
        block_bytes,
        6 * block_bytes,
        grid=(2, len(pairs), layers),
        block=256,
    )
    expected = pool.copy()
    for source, destination in pairs:
        expected[:, destination] = pool[:, source]
    np.testing.assert_array_equal(device_pool.get(), expected)
