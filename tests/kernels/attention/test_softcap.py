"""rf_softcap: cap * tanh(x / cap), in place."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check

CASES = {"part_of_one_block": 100, "one_block": 256, "many_blocks_ragged_tail": 700}


@pytest.mark.parametrize("count", CASES.values(), ids=CASES.keys())
def test_caps_in_place(device: Device, count: int) -> None:
    logits = (np.random.default_rng(1).standard_normal(count) * 40).astype(np.float32)
    logits[:6] = [0.0, 1e-6, -0.1, 1e6, -np.inf, np.nan]
    x = device.upload(logits, "x")
    device.launch("rf_softcap", x, 30.0, count, grid=-(-count // 256), block=256)
    check(x.get(), ops.softcap(logits.astype(np.float64), 30.0), rtol=2e-6)
