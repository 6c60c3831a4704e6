"""rf_copy_blocks: blocks of several arrays lie together in the host's memory, and come back."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device

BLOCKS, SLOTS = 5, 4
# bytes of a block in each array
CASES = {
    "one_piece": [16],
    "part_of_a_round": [16, 4096 + 48],
    "several_rounds": [16384 + 32, 128, 40_000],
}
PAIRS = np.array([[3, 0], [0, 3], [4, 1]], np.int32)


@pytest.mark.parametrize("grid", [1, 4])
@pytest.mark.parametrize("to_host", [True, False])
@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES.keys())
def test_blocks_are_copied(device: Device, sizes: list[int], to_host: bool, grid: int) -> None:
    rng = np.random.default_rng(sum(sizes))
    arrays = [rng.integers(0, 256, (BLOCKS, size), np.uint8) for size in sizes]
    host = rng.integers(0, 256, (SLOTS, sum(sizes)), np.uint8)
    on_device = [device.upload(array, f"array {i}") for i, array in enumerate(arrays)]
    slots = device.upload(host, "host")
    starts = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
    device.launch(
        "rf_copy_blocks",
        on_device[0],
        device.upload(
            np.array([each.pointer - on_device[0].pointer for each in on_device], np.int64),
            "arrays",
        ),
        device.upload(np.array(sizes, np.int64), "part_bytes"),
        device.upload(starts, "starts"),
        device.upload(PAIRS, "pairs"),
        slots,
        sum(sizes),
        len(sizes),
        len(PAIRS),
        int(to_host),
        grid=(grid,),
        block=256,
    )
    for block, slot in PAIRS:
        for array, start, size in zip(arrays, starts, sizes, strict=True):
            part = slice(start, start + size)
            if to_host:
                host[slot, part] = array[block]
            else:
                array[block] = host[slot, part]
    np.testing.assert_array_equal(slots.get(), host)
    for found, array in zip(on_device, arrays, strict=True):
        np.testing.assert_array_equal(found.get(), array)
