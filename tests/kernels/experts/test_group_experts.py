"""rf_group_experts: pairs of tokens and experts, sorted by expert, and the tiles they make.

Names of cases follow the kernel's loops: a block of waves goes over the pairs in rounds, each wave
over some that follow each other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.launches.kernels import Device
from tests.support.operands.experts import random_choice
from tests.support.operands.groups import ELSEWHERE, group, groups_of

Int32 = npt.NDArray[np.int32]


def _random(tokens: int, num_chosen: int, num_experts: int) -> Int32:
    return random_choice(np.random.default_rng(tokens), tokens, num_experts, num_chosen)


def _half(chosen: Int32) -> Int32:
    """The choice among twice as many as this device has: the second half."""
    own = chosen - (chosen.max() + 1) // 2
    return np.where(own >= 0, own, ELSEWHERE).astype(np.int32)


# chosen, experts, rows of a tile, threads of a block
CASES = {
    "one_pair": (np.array([[2]], np.int32), 4, 32, 64),
    "one_token": (_random(1, 4, 8), 8, 32, 64),
    "one_round": (_random(8, 8, 16), 16, 16, 64),
    "ragged_rounds": (_random(67, 3, 5), 5, 32, 128),
    "many_rounds": (_random(600, 4, 12), 12, 64, 256),
    "most_waves": (_random(301, 8, 9), 9, 32, 1024),
    "one_expert_has_all": (np.full((80, 1), 3, np.int32), 6, 32, 64),
    "the_first_and_last_have_all": (np.array([[0, 6], [6, 0]] * 32, np.int32), 7, 32, 64),
    "whole_tiles": (np.repeat(np.arange(4, dtype=np.int32), 64)[:, None], 4, 32, 64),
    "half_are_elsewhere": (_half(_random(67, 3, 10)), 5, 32, 128),
    "one_is_elsewhere_in_each_round": (np.array([[0, 1], [-1, 0]] * 70, np.int32), 2, 32, 64),
    "all_are_elsewhere": (np.full((9, 2), ELSEWHERE, np.int32), 3, 32, 64),
    "tiles_of_one_row": (_random(9, 2, 3), 3, 1, 64),
}


@pytest.mark.parametrize(
    ("chosen", "experts", "tile_rows", "threads"), CASES.values(), ids=CASES.keys()
)
def test_sorts_pairs_and_cuts_them_into_tiles(
    device: Device, chosen: Int32, experts: int, tile_rows: int, threads: int
) -> None:
    arrays = group(device, chosen, experts, tile_rows, threads)
    expected = groups_of(chosen)
    here = len(expected.order)
    np.testing.assert_array_equal(arrays.tokens.get()[:here], expected.tokens)
    np.testing.assert_array_equal(arrays.places.get(), expected.places)
    seen = np.zeros(here, np.int32)
    count = sum(-(-np.count_nonzero(chosen == each) // tile_rows) for each in range(experts))
    tiles = arrays.tiles.get()
    for expert, first, end, _ in tiles[:count]:
        assert 0 < end - first <= tile_rows
        assert (expected.experts[first:end] == expert).all()
        seen[first:end] += 1
    assert (seen == 1).all()
    assert (tiles[count:, 1] == tiles[count:, 2]).all()  # there is nothing in the others
    assert (tiles[:, 3] == count).all()
