"""rf_begin_step: inputs of a step from the host, ids from there or from the previous step."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device

WORD = 16  # bytes


@pytest.mark.parametrize("count", [5, 256, 300], ids=["one_block", "full_block", "many_blocks"])
@pytest.mark.parametrize("words", [0, 3, 256, 517], ids="{}_words".format)
def test_brings_inputs_and_takes_ids_from_where_they_are(
    device: Device, words: int, count: int
) -> None:
    rng = np.random.default_rng(1)
    host = rng.integers(0, 256, words * WORD, np.uint8)
    ids = rng.integers(0, 1000, count, np.int32)
    previous = np.array([77, -1, 999], np.int32)  # the second row could not be sampled
    source = rng.integers(-1, 3, count, np.int32)
    source[:4] = [-1, 0, 1, 2]
    tokens = device.empty(count, np.int32, "tokens")
    inputs = device.empty(words * WORD, np.uint8, "inputs") if words else None
    device.launch(
        "rf_begin_step",
        *(device.upload(host) if words else None, inputs, words),
        *(device.upload(ids), device.upload(source), device.upload(previous), tokens, count),
        grid=-(-max(words, count) // 256),
        block=256,
    )
    expected = np.where(source < 0, ids, np.maximum(previous, 0)[source])
    np.testing.assert_array_equal(tokens.get(), expected)
    if inputs is not None:
        np.testing.assert_array_equal(inputs.get(), host)
