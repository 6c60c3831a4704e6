"""Which expert has which tokens, as kernels/include/rf/experts/groups.h says, for tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.support.launches.kernels import Device, DeviceArray

ELSEWHERE = -1
"""The expert of a pair whose matrix another device has, and the place of such a pair."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Groups:
    """Pairs sorted by expert: the oracle of rf_group_experts."""

    order: npt.NDArray[np.int64]  # [pairs that are here], the pair at each place
    experts: Int32  # alike, sorted
    tokens: Int32  # alike, sorted
    places: Int32  # [pairs], where each went, or ELSEWHERE


def groups_of(chosen: Int32) -> Groups:
    """The pairs of chosen experts, [tokens, num_chosen]; those below 0 are of another device."""
    pairs = chosen.ravel()
    order = np.argsort(pairs, kind="stable")[np.count_nonzero(pairs < 0) :]
    places = np.full(len(pairs), ELSEWHERE, np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    return Groups(order, pairs[order], (order // chosen.shape[1]).astype(np.int32), places)


@dataclass(frozen=True, slots=True)
class GroupArrays:
    """What rf_group_experts wrote."""

    tokens: DeviceArray  # int32 [pairs]
    places: DeviceArray  # int32 [pairs]
    tiles: DeviceArray  # int32 [tiles, 4]: expert, first, end, count of those with pairs


def group(
    device: Device, chosen: Int32, num_experts: int, tile_rows: int, threads: int = 64
) -> GroupArrays:
    """Runs rf_group_experts."""
    pairs = chosen.size
    arrays = GroupArrays(
        device.empty((pairs,), np.int32, "tokens"),
        device.empty((pairs,), np.int32, "places"),
        device.empty((pairs // tile_rows + num_experts, 4), np.int32, "tiles"),
    )
    device.launch(
        "rf_group_experts",
        device.upload(chosen, "chosen"),
        arrays.tokens,
        arrays.places,
        arrays.tiles,
        pairs,
        chosen.shape[1],
        tile_rows,
        grid=num_experts,
        block=threads,
    )
    return arrays
