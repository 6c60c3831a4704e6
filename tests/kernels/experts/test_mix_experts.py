"""rf_mix_experts: the weighted sum of what its experts made of each token."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.groups import ELSEWHERE, groups_of

# tokens, num_chosen, hidden_size
CASES = {
    "one_token": (1, 1, 32),
    "several": (5, 4, 96),
    "unrolled_loop_and_tail": (3, 10, 64),
    "ragged_last_block": (2, 2, 1056),
}


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("least", [0, ELSEWHERE])
@pytest.mark.parametrize(("tokens", "num_chosen", "hidden_size"), CASES.values(), ids=CASES.keys())
def test_adds_up(
    device: Device, tokens: int, num_chosen: int, hidden_size: int, least: int, is_sorted: bool
) -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal((tokens * num_chosen, hidden_size)).astype(np.float32)
    weights = rng.random((tokens, num_chosen), np.float32)
    places = groups_of(rng.integers(least, 7, weights.shape).astype(np.int32)).places
    if is_sorted:
        y[np.count_nonzero(places != ELSEWHERE) :] = np.nan  # nothing was written there
    else:
        y[places == ELSEWHERE] = np.nan
    out = device.empty((tokens, hidden_size), np.float32, "out")
    device.launch(
        "rf_mix_experts",
        device.upload(y, "y"),
        device.upload(places, "places"),
        device.upload(weights, "weights"),
        out,
        num_chosen,
        hidden_size,
        int(is_sorted),
        grid=(-(-hidden_size // 1024), tokens),
        block=256,
    )
    found = places if is_sorted else np.arange(places.size)
    rows = y.astype(np.float64)[found].reshape(tokens, num_chosen, hidden_size)
    rows[places.reshape(weights.shape) == ELSEWHERE] = 0
    check(out.get(), np.einsum("tc,tch->th", weights, rows), rtol=1e-6, atol=1e-5)
