"""rf_mix_experts: the weighted sum of what its experts made of each token, alone and normed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check
from tests.support.operands.activations import SCALE_DTYPE as ACT_SCALE
from tests.support.operands.groups import ELSEWHERE, groups_of
from tests.support.operands.norms import random_rows

EPS = 1e-5

Array = npt.NDArray[Any]

# tokens, num_chosen, hidden_size
CASES = {
    "one_token": (1, 1, 32),
    "several": (5, 4, 96),
    "unrolled_loop_and_tail": (3, 10, 64),
    "ragged_last_block": (2, 2, 1056),
}


# tokens, num_chosen, hidden_size, threads of a block
NORMED = {
    "one_load_of_places": (3, 4, 576, 192),
    "several_and_tail": (9, 10, 384, 128),
    "tail_alone": (2, 3, 32, 64),
    "four_groups_a_thread": (2, 8, 1024, 64),
    "ragged_second_group": (5, 2, 288, 64),
}


def made_pairs(
    tokens: int, num_chosen: int, hidden_size: int, least: int, *, is_sorted: bool
) -> tuple[Array, Array, Array, Array]:
    """What experts made, where, and the weights of pairs; and the sums in float64."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((tokens * num_chosen, hidden_size)).astype(np.float32)
    weights = rng.random((tokens, num_chosen), np.float32)
    places = groups_of(rng.integers(least, 7, weights.shape).astype(np.int32)).places
    if is_sorted:
        y[np.count_nonzero(places != ELSEWHERE) :] = np.nan  # nothing was written there
    else:
        y[places == ELSEWHERE] = np.nan
    found = places if is_sorted else np.arange(places.size)
    rows = y.astype(np.float64)[found].reshape(tokens, num_chosen, hidden_size)
    rows[places.reshape(weights.shape) == ELSEWHERE] = 0
    return y, places, weights, np.einsum("tc,tch->th", weights, rows)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("least", [0, ELSEWHERE])
@pytest.mark.parametrize(("tokens", "num_chosen", "hidden_size"), CASES.values(), ids=CASES.keys())
def test_adds_up(
    device: Device, tokens: int, num_chosen: int, hidden_size: int, least: int, is_sorted: bool
) -> None:
    y, places, weights, want = made_pairs(
        tokens, num_chosen, hidden_size, least, is_sorted=is_sorted
    )
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
    check(out.get(), want, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("least", [0, ELSEWHERE])
@pytest.mark.parametrize(
    ("tokens", "num_chosen", "hidden_size", "threads"), NORMED.values(), ids=NORMED.keys()
)
def test_adds_up_and_norms_as_in_launches_of_their_own(
    device: Device,
    tokens: int,
    num_chosen: int,
    hidden_size: int,
    threads: int,
    least: int,
    is_sorted: bool,
) -> None:
    """To the last bit, in all forms; and as in float64."""
    y, places, factors, want = made_pairs(
        tokens, num_chosen, hidden_size, least, is_sorted=is_sorted
    )
    shape = tokens, hidden_size
    old, weight = random_rows(tokens, hidden_size), random_rows(1, hidden_size, seed=2)[0]
    pairs = device.upload(y, "y"), device.upload(places), device.upload(factors)
    sizes, mixed = (num_chosen, hidden_size), device.empty(shape, np.float32)
    grid = -(-hidden_size // 1024), tokens
    device.launch("rf_mix_experts", *pairs, mixed, *sizes, int(is_sorted), grid=grid, block=256)
    found = []
    for is_apart in (True, False):
        residual, f32 = device.upload(old), device.empty(shape, np.float32)
        f16, q = device.empty(shape, np.float16), device.empty(shape, np.int8)
        rounded = q, device.empty((tokens, hidden_size // 32), ACT_SCALE)
        outputs = device.upload(weight), f32, f16, *rounded, 0
        if is_apart:
            args: tuple[Any, ...] = (mixed, residual, None, None, *outputs, hidden_size, EPS)
            device.launch("rf_add_rms_norm", *args, grid=tokens, block=threads)
        else:
            args = (*pairs, residual, *outputs, num_chosen, int(is_sorted), hidden_size, EPS)
            device.launch("rf_add_pairs_rms_norm", *args, grid=tokens, block=threads)
        found.append([each.get().tobytes() for each in (residual, f32, f16, *rounded)])
    assert found[0] == found[1]
    want += old
    check(residual.get(), want, rtol=1e-6, atol=1e-5)
    check(f32.get(), ops.rms_norm(want, weight.astype(np.float64), EPS), rtol=1e-6, atol=1e-5)
