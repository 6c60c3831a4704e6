"""rf_fetch_experts: experts that rows have chosen come from the host's memory, others do not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device
from tests.support.operands.groups import group

EXPERTS, SEATS = 6, 2


@pytest.mark.parametrize("nbytes", [16, 4096 + 48, 40_000])
@pytest.mark.parametrize("parts", [1, 3])
def test_chosen_experts_without_a_seat_are_fetched(device: Device, nbytes: int, parts: int) -> None:
    rng = np.random.default_rng(nbytes)
    # The seats hold experts 4 and 1; all experts lie behind what belongs to nobody.
    memory = rng.integers(0, 256, (SEATS + 1 + EXPERTS, nbytes), np.uint8)
    places = (SEATS + 1 + np.arange(EXPERTS)) * nbytes
    places[[4, 1]] = 0, nbytes
    chosen = np.array([[4, 0], [5, 4], [4, 5], [5, 0]], np.int32)
    arrays = group(device, chosen, EXPERTS, 32)
    weight, fetched = (
        device.upload(memory, "weight"),
        device.upload(np.zeros((EXPERTS, nbytes), np.uint8), "fetched"),
    )
    found = device.empty((EXPERTS,), np.int64, "found")
    distance = fetched.pointer - weight.pointer
    device.launch(
        "rf_fetch_experts",
        weight,
        device.upload(places.astype(np.int64), "places"),
        arrays.tiles,
        fetched,
        found,
        distance,
        nbytes,
        SEATS * nbytes,
        arrays.tiles.shape[0],
        grid=(EXPERTS, parts),
        block=256,
    )
    expected, copies = places.copy(), np.zeros((EXPERTS, nbytes), np.uint8)
    for expert in (0, 5):
        expected[expert] = distance + expert * nbytes
        copies[expert] = memory[SEATS + 1 + expert]
    np.testing.assert_array_equal(found.get(), expected)
    np.testing.assert_array_equal(fetched.get(), copies)
