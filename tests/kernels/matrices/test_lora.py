"""rf_lora_shrink_* and rf_lora_expand: y += factor * (x A^T) B^T, by the adapter of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.launches.kernels import Device, DeviceArray

TILE = 16
HALF = 2.0**-11


@dataclass(frozen=True, kw_only=True)
class Case:
    """Some rows of x, their adapters, and the ranks of those by part."""

    in_features: int = 64
    parts: tuple[int, ...] = (32,)  # columns of y
    ranks: tuple[tuple[int, ...], ...] = ((8,),)  # of each adapter, by part
    rows: tuple[int, ...] = (0,)  # adapter of each
    is_interleaved: bool = False  # 16 columns of one part, then 16 of the other
    spare_tiles: int = 0
    split_features: int = 1024


CASES = {
    "one_row": Case(),
    "one_rank": Case(ranks=((1,),)),
    "rank_between_chunks": Case(ranks=((13,),)),
    "one_tile_of_ranks": Case(ranks=((16,),)),
    "many_tiles_of_ranks": Case(ranks=((40,),)),
    "largest_rank": Case(in_features=32, ranks=((128,),)),
    "every_wave_has_work": Case(in_features=288),
    "every_wave_has_much_work": Case(in_features=1312, split_features=2048),
    "split_features": Case(in_features=96, split_features=32, rows=(0, -1, 0)),
    "ragged_split": Case(in_features=672, split_features=384, ranks=((8,), (20,)), rows=(0, 1, 0)),
    "rows_without_an_adapter": Case(rows=(-1, 0, -1, 0, 0, -1)),
    "one_full_tile": Case(rows=(0,) * 16),
    "many_tiles_of_rows": Case(rows=(0,) * 37),
    "several_adapters": Case(ranks=((8,), (3,), (32,)), rows=(2, 0, -1, 1, 2, 0, 0, 1)),
    "one_part_is_not_changed": Case(parts=(32, 16), ranks=((8, 0),), rows=(0, 0)),
    "parts_of_other_ranks": Case(
        parts=(96, 16, 32), ranks=((8, 16, 1), (0, 0, 24)), rows=(0, 1, 1, -1)
    ),
    "more_columns_than_a_block": Case(parts=(80,), rows=(0, 0)),
    "interleaved": Case(parts=(48, 48), ranks=((4, 12),), rows=(0,) * 3, is_interleaved=True),
    "tiles_of_a_graph_that_are_not_needed": Case(rows=(0, -1), spare_tiles=3),
}


def tiles_of(rows: tuple[int, ...], spare: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Tiles, [n, 3], and the order of rows."""
    tiles: list[tuple[int, int, int]] = []
    order: list[int] = []
    for adapter in sorted(set(rows) - {-1}):
        members = [row for row, own in enumerate(rows) if own == adapter]
        for first in range(0, len(members), TILE):
            some = members[first : first + TILE]
            tiles.append((adapter, len(order), len(some)))
            order += some
    tiles += [(0, 0, 0)] * spare
    return np.array(tiles, np.int32), np.array(order or [0], np.int32)


@dataclass(frozen=True)
class Stack:
    """The adapters of a case, as NumPy has them and as kernels do."""

    a: dict[tuple[int, int], npt.NDArray[Any]]
    b: dict[tuple[int, int], npt.NDArray[Any]]
    factors: npt.NDArray[Any]
    arrays: tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]  # A, B, places


def stack(case: Case) -> Stack:
    rng = np.random.default_rng(3)
    a, b, places = {}, {}, []
    all_a, all_b = [], []
    a_rows = b_chunks = 0
    for adapter, ranks in enumerate(case.ranks):
        for part, rank in enumerate(ranks):
            places.append((a_rows, b_chunks, rank))
            own_a = rng.standard_normal((rank, case.in_features)).astype(np.float16)
            own_b = rng.standard_normal((case.parts[part], rank)).astype(np.float16)
            a[adapter, part], b[adapter, part] = own_a, own_b
            padded = np.pad(own_b, ((0, 0), (0, -rank % 8)))
            all_a.append(own_a.reshape(-1))
            all_b.append(padded.reshape(-1))
            a_rows += rank
            b_chunks += padded.size // 8
    factors = rng.standard_normal(len(places)).astype(np.float32)
    flat_a, flat_b = np.concatenate(all_a), np.concatenate(all_b)
    return Stack(a, b, factors, (flat_a, flat_b, np.array(places, np.int32)))


def outputs_of(case: Case) -> npt.NDArray[Any]:
    """First 16, step and number of 16s of each part."""
    if case.is_interleaved:
        return np.array([(16 * p, 32, width // 16) for p, width in enumerate(case.parts)], np.int32)
    starts = np.cumsum((0, *case.parts[:-1]))
    return np.array(
        [(start, 16, width // 16) for start, width in zip(starts, case.parts, strict=True)],
        np.int32,
    )


@pytest.mark.parametrize("form", ["f32", "f16"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_adds_what_the_adapter_of_each_row_says(device: Device, case: Case, form: str) -> None:
    rng = np.random.default_rng(5)
    tiles, order = tiles_of(case.rows, case.spare_tiles)
    adapters = stack(case)
    x = rng.standard_normal((len(case.rows), case.in_features)).astype(np.float16)
    y = rng.standard_normal((len(case.rows), sum(case.parts))).astype(np.float32)
    parts = len(case.parts)
    padded_ranks = parts * -(-max(max(ranks) for ranks in case.ranks) // 16) * 16
    a, b, places = (device.upload(array) for array in adapters.arrays)
    splits = -(-case.in_features // case.split_features)
    shrunk = device.empty((splits, TILE * len(tiles), padded_ranks), np.float32, "shrunk")
    out = device.upload(y, "y")
    outputs = outputs_of(case)
    on_device: list[DeviceArray] = [device.upload(each) for each in (tiles, order)]
    device.launch(
        f"rf_lora_shrink_{form}",
        device.upload(x.astype(np.float32) if form == "f32" else x, "x"),
        a,
        *on_device,
        places,
        shrunk,
        case.in_features,
        case.split_features,
        parts,
        padded_ranks,
        grid=(padded_ranks // 16, len(tiles), splits),
        block=8 * device.wave,
    )
    device.launch(
        "rf_lora_expand",
        shrunk,
        b,
        *on_device,
        places,
        device.upload(adapters.factors),
        device.upload(outputs),
        out,
        splits,
        padded_ranks,
        sum(case.parts),
        grid=(-(-int(outputs[:, 2].max()) // 4), parts, len(tiles)),
        block=4 * device.wave,
    )
    expected, slack = expectation(case, adapters, x, y)
    worst = np.abs(out.get() - expected) / slack
    assert worst.max() < 1.0, np.unravel_index(worst.argmax(), worst.shape)


def expectation(
    case: Case, adapters: Stack, x: npt.NDArray[Any], y: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The result in float64, and what rounding what was shrunk to halves may make of it."""
    expected = y.astype(np.float64)
    slack = np.abs(expected) * 1e-6 + 1e-6
    outputs = outputs_of(case)
    for row, adapter in enumerate(case.rows):
        for part in range(len(case.parts) if adapter >= 0 else 0):
            a, b = (each[adapter, part].astype(np.float64) for each in (adapters.a, adapters.b))
            factor = float(adapters.factors[adapter * len(case.parts) + part])
            first, step, count = outputs[part]
            where = (first + step * np.arange(count)[:, None] + np.arange(16)).reshape(-1)
            low = x[row].astype(np.float64) @ a.T
            size = np.abs(x[row].astype(np.float64)) @ np.abs(a).T
            expected[row, where] += factor * (b @ low)
            slack[row, where] += abs(factor) * (np.abs(b) @ (HALF * np.abs(low) + 1e-6 * size))
    return expected, slack
