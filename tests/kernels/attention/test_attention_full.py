"""rf_attention_full_*: every token sees all tokens of its sequence, against float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge_reference import ops
from tests.support.launches.kernels import Device, DeviceArray, check

ROWS = 128  # queries of a block
THREADS = 256

# Lengths of the sequences. A tile of keys has 64 or 32.
BATCHES = {
    "one_token": [1],
    "part_of_a_tile": [9],
    "one_tile_of_keys": [64],
    "tile_plus_one": [65],
    "one_block_of_queries": [128],
    "block_plus_one": [129],
    "several_blocks": [300],
    "mixed_lengths": [1, 130, 17, 64, 2],
}


def attend(
    device: Device,
    lengths: list[int],
    head_dim: int,
    heads: int,
    scale: float,
    reach: int = 0,
    slopes: tuple[float, ...] | None = None,
    group: int = 1,
) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.float64]]:
    """The kernel's answer, and the one in float64."""
    rng = np.random.default_rng(sum(lengths))
    tokens, width, shared = sum(lengths), heads * head_dim, heads // group * head_dim
    stride = width + 2 * shared
    stacked = rng.standard_normal((tokens, stride)).astype(np.float16)
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    there = device.upload(stacked, "qkv")
    out = device.empty((tokens, heads, head_dim), np.float16, "out")
    kind = "full"
    distance: tuple[int | DeviceArray | None, ...] = ()
    if reach or slopes is not None:
        costs = None if slopes is None else device.upload(np.array(slopes, np.float32), "slopes")
        kind, distance = "full_near", (reach, costs)
    device.launch(
        f"rf_attention_{kind}_d{head_dim}",
        *(there, there.part(width), there.part(width + shared)),
        device.upload(starts, "query_start"),
        *(out, stride, stride, stride, scale, group, *distance),
        grid=(-(-max(lengths) // ROWS), heads, len(lengths)),
        block=THREADS,
    )
    q, k, v = (
        part.reshape(tokens, -1, head_dim)
        for part in np.split(stacked.astype(np.float64), [width, width + shared], axis=1)
    )
    expected = ops.attend_all(
        *(q, k, v, starts, scale),
        reach=reach or None,
        slopes=None if slopes is None else np.array(slopes),
    )
    return out.get(), expected


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
def test_every_length(device: Device, lengths: list[int]) -> None:
    got, expected = attend(device, lengths, head_dim=64, heads=2, scale=64**-0.5)
    # The weights are rounded to float16 for the second product.
    check(got, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("heads", "group"), [(3, 3), (6, 2)])
def test_heads_of_queries_may_share_keys_and_values(device: Device, heads: int, group: int) -> None:
    got, expected = attend(device, [33, 1], 32, heads, scale=0.3, reach=9, group=group)
    check(got, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
def test_every_head_size(device: Device, head_dim: int) -> None:
    got, expected = attend(device, [70, 3], head_dim=head_dim, heads=3, scale=head_dim**-0.5)
    check(got, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("reach", [1, 9, 64])
def test_a_token_sees_those_within_reach(device: Device, lengths: list[int], reach: int) -> None:
    got, expected = attend(device, lengths, head_dim=64, heads=1, scale=0.5, reach=reach)
    check(got, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
@pytest.mark.parametrize("reach", [3, 130])
def test_reach_for_every_head_size(device: Device, head_dim: int, reach: int) -> None:
    got, expected = attend(device, [290, 5], head_dim, heads=1, scale=0.3, reach=reach)
    check(got, expected, rtol=2e-3, atol=2e-3)


def test_tiles_beyond_the_reach_of_a_block_are_left_out(device: Device) -> None:
    """Weights of zero would not hide what is no number."""
    q, k, v = (np.ones((300, 1, 64), np.float16) for _ in range(3))
    k[200:], v[200:] = np.nan, np.nan
    out = device.empty(q.shape, np.float16, "out")
    arrays = [device.upload(each) for each in (q, k, v, np.array([0, 300], np.int32))]
    args = (*arrays, out, 64, 64, 64, 0.2, 1, 8, None)
    device.launch("rf_attention_full_near_d64", *args, grid=(3, 1, 1), block=THREADS)
    np.testing.assert_array_equal(out.get()[:ROWS], 1)


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
def test_distance_costs_what_the_slope_of_the_head_says(device: Device, lengths: list[int]) -> None:
    got, expected = attend(device, lengths, 64, 3, scale=0.2, slopes=(0.5, 0.004, 0.0))
    check(got, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_slopes_and_reach_together(device: Device, head_dim: int) -> None:
    got, expected = attend(device, [150], head_dim, 2, scale=0.2, reach=20, slopes=(0.25, 0.1))
    check(got, expected, rtol=2e-3, atol=2e-3)


def test_sharp_scores_pick_single_keys(device: Device) -> None:
    got, expected = attend(device, [150], head_dim=32, heads=1, scale=3.0)
    check(got, expected, rtol=2e-3, atol=2e-3)


def test_small_weights_of_many_keys_are_not_lost(device: Device) -> None:
    """Each is a 37,000th of the largest: less than matrix instructions of MI200 take for a half."""
    q, k, v = (np.zeros((300, 1, 32), np.float16) for _ in range(3))
    q[:, :, 0], k[0, :, 0], v[1:] = 2.0, 5.25, 1.0
    starts = np.array([0, 300], np.int32)
    out = device.empty(q.shape, np.float16, "out")
    arrays = [device.upload(each) for each in (q, k, v, starts)]
    grid = (3, 1, 1)
    device.launch(
        "rf_attention_full_d32", *arrays, out, *(32,) * 3, 1.0, 1, grid=grid, block=THREADS
    )
    exact_q, exact_k, exact_v = (x.astype(np.float64) for x in (q, k, v))
    expected = ops.attend_all(exact_q, exact_k, exact_v, starts, 1.0)
    check(out.get(), expected, rtol=2e-3, atol=0)


def test_queries_keys_and_values_may_lie_apart(device: Device) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((20, 2, 32)).astype(np.float16) for _ in range(3))
    wide = np.full((20, 96), np.nan, np.float16)
    wide[:, :64] = k.reshape(20, 64)
    starts = np.array([0, 20], np.int32)
    out = device.empty(q.shape, np.float16, "out")
    arrays = [device.upload(each) for each in (q, wide, v, starts)]
    device.launch(
        "rf_attention_full_d32", *arrays, out, 64, 96, 64, 0.2, 1, grid=(1, 2, 1), block=THREADS
    )
    expected = ops.attend_all(q.astype(np.float64), k.astype(np.float64), v, starts, 0.2)
    check(out.get(), expected, rtol=2e-3, atol=2e-3)


def test_a_nan_stays_in_its_sequence_and_head(device: Device) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((40, 2, 32)).astype(np.float16) for _ in range(3))
    k[5, 1, 3] = np.nan
    starts = np.array([0, 20, 40], np.int32)
    out = device.empty(q.shape, np.float16, "out")
    arrays = [device.upload(each) for each in (q, k, v, starts)]
    device.launch(
        "rf_attention_full_d32", *arrays, out, 64, 64, 64, 0.2, 1, grid=(1, 2, 2), block=THREADS
    )
    bad = np.asarray(np.isnan(out.get()).any(axis=2))
    assert bad[:20, 1].all()
    assert not bad[:, 0].any()
    assert not bad[20:].any()
