"""How contexts are cut into splits for attention."""

from __future__ import annotations

import pytest

from rocmforge_hip.ops.attention.prefill_splits import PrefillSplit, PrefillTiles, best_split
from rocmforge_hip.ops.geometry import Geometry

DEVICE = Geometry(132)


@pytest.mark.parametrize(
    ("context", "blocks", "sequences", "whole"),
    [
        (256, 8, 1, True),
        (256, 2, 5, True),
        (257, 8, 8, False),
        (1024, 8, 8, False),
        (1024, 8, 13, True),
        (1025, 8, 16, False),
        (2048, 8, 29, True),
        (2049, 8, 32, False),
    ],
)
def test_a_context_is_whole_where_its_blocks_do_enough_besides(
    context: int, blocks: int, sequences: int, whole: bool
) -> None:
    split = DEVICE.attention(context, None, blocks, sequences, blocks_per_cu=3)
    assert (split.count == 1) == whole
    assert split.count * split.tokens >= context


def test_what_a_window_hides_does_not_count() -> None:
    assert DEVICE.attention(100_000, 128, 8, 1).count == 1
    assert DEVICE.attention(100_000, 1024, 8, 1).count > 1


def split_of(
    tiles: PrefillTiles, device: Geometry = DEVICE, blocks_per_cu: int = 1
) -> PrefillSplit:
    at_once = device.prefills_at_once(blocks_per_cu)
    return best_split(tiles, at_once, device.prefill_results(), device.least_prefill_keys)


def tiles(context: int, *of_sequences: int, kv_heads: int = 2, group: int = 8) -> PrefillTiles:
    return PrefillTiles(context=context, of_sequences=of_sequences, kv_heads=kv_heads, group=group)


@pytest.mark.parametrize("number", [1, 2, 19, 33])
def test_all_tiles_are_split_where_they_are_few(number: int) -> None:
    few = tiles(25_000, number)
    split = split_of(few)
    assert split.tiles == number
    assert 80 <= few.blocks(number) * split.count <= 132
    assert split.count * split.tokens >= 25_000


def test_tiles_that_fill_the_device_are_not_split() -> None:
    for number in (65, 66, 131, 132):
        assert split_of(tiles(25_000, number)).tiles == 0


@pytest.mark.parametrize(
    ("of_sequences", "cut"), [((67,), 1), ((70,), 4), ((94,), 28), ((2, 63, 2), 1), ((64, 3), 1)]
)
def test_tiles_of_a_last_round_are_split(of_sequences: tuple[int, ...], cut: int) -> None:
    """The others are whole rounds: 132 blocks at once."""
    several = tiles(25_000, *of_sequences)
    split = split_of(several)
    assert split.tiles == cut
    assert several.blocks(max(of_sequences)) - several.blocks(cut) <= 132


def test_a_last_round_that_is_nearly_full_is_left_as_it_is() -> None:
    assert split_of(tiles(25_000, 128)).tiles == 0


def test_a_prompt_that_has_no_long_context_before_it_is_left_as_it_is() -> None:
    assert split_of(tiles(2_144, 134)).tiles == 0
    assert split_of(tiles(1_000, 4)).tiles == 0


def test_heads_that_cannot_be_split_are_not() -> None:
    assert split_of(tiles(25_000, 4), blocks_per_cu=0).tiles == 0


@pytest.mark.parametrize("compute_units", [16, 60, 96, 304])
def test_results_of_splits_have_room(compute_units: int) -> None:
    device = Geometry(compute_units)
    for number in range(1, 300, 7):
        several = tiles(60_000, number, number // 2 + 1, kv_heads=4, group=7)
        split = split_of(several, device, blocks_per_cu=2)
        assert split.count * several.results(split.tiles) <= device.prefill_results()
