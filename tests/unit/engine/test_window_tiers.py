"""Blocks of layers with a window leave the device and come back, with those that a window sees.

The fake runner keeps of each slot which group wrote it, and checks what every window sees.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmforge.engine.cache.tiers.block_file import SUFFIX, FileKey
from rocmforge.engine.cache.tiers.folder import CacheFolder
from rocmforge.engine.cache.tiers.tiers import Arrival, CacheTiers, Shipment
from rocmforge.engine.cache.window_blocks import WindowBlocks
from rocmforge.engine.ipc.messages import Cancel
from rocmforge.engine.ipc.params import FinishReason
from rocmforge.engine.sequence.block_keys import BlockKey
from rocmforge.engine.sequence.sequence import Sequence
from tests.unit.engine.cache.test_tiers import MODEL, TieredBench
from tests.unit.engine.test_windows import (
    BLOCK,
    END,
    FOUR,
    GROUPS,
    TREES,
    WINDOW,
    Tree,
    ask,
    cached,
    config,
    follows,
    held,
    words,
)

SEEN = -(-WINDOW // BLOCK)
"""Blocks of a group that a token sees at the beginning of a block."""
ROOM = 130
"""Blocks of the device: for one of the prompts below, and not for three."""


def tiered(slots: int = 400, *, num_blocks: int = ROOM, depth: int = 1, **more: int) -> TieredBench:
    """A core whose blocks go to so many slots of the host."""
    return TieredBench(config(num_blocks, pipeline_depth=depth, **more), slots, None, FOUR)


def fill(bench: TieredBench, *numbers: int) -> None:
    """Has the device compute other prompts, which take the blocks of all before."""
    for number in numbers:
        assert cached(bench, ask(number, words(number, 160))) == [0]
        bench.rest()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_that_left_the_device_comes_back_with_what_its_windows_see(depth: int) -> None:
    bench = tiered(depth=depth)
    fill(bench, 1, 2, 3, 4)
    before = bench.stats.totals.tier_restored_blocks
    assert cached(bench, ask(9, words(1, 160))) == [156]
    assert bench.stats.totals.tier_restored_blocks - before == 39 + GROUPS * SEEN


def test_only_what_somebody_may_begin_behind_is_saved_of_windows() -> None:
    bench = tiered()
    prompt = [*words(1, 59), END, *words(2, 100)]
    cached(bench, ask(0, prompt))
    bench.rest()
    of_windows = bench.tiers.blocks.slots.num_used - len(prompt) // BLOCK
    # At the end of the message, and of the sequence, whose last block is not full.
    assert of_windows == GROUPS * (2 * SEEN - 1)
    fill(bench, 5, 6, 7)
    assert cached(bench, ask(1, [*prompt[:60], *words(8, 40)])) == [60]
    fill(bench, 10, 11, 12)
    assert cached(bench, ask(2, [*prompt[:100], *words(8, 40)])) == [60]


def test_windows_alone_come_back_where_the_device_has_the_rest() -> None:
    bench = tiered()
    fill(bench, 1)
    blocks = bench.core._scheduler._cache._allocator
    seq = Sequence(ask(0, words(1, 160)), BLOCK)
    for block in range(40 - SEEN, 40):
        for group in range(GROUPS):
            gone = blocks.find(seq.block_key(block) + bytes([group]))
            if gone is not None:
                blocks.forget(gone)
    assert cached(bench, ask(1, words(1, 160))) == [156]
    assert 0 < bench.stats.totals.tier_restored_blocks <= GROUPS * SEEN


def test_nothing_comes_back_for_a_window_of_which_a_block_is_nowhere() -> None:
    bench = tiered()
    fill(bench, 1, 2, 3, 4)
    key = Sequence(ask(0, words(1, 160)), BLOCK).block_key(38) + bytes([1])
    bench.tiers.blocks.slots.drop(key)
    before = bench.stats.totals.tier_restored_blocks
    assert cached(bench, ask(9, words(1, 160))) == [0]
    assert bench.stats.totals.tier_restored_blocks == before


def test_a_few_slots_of_the_host_hold_windows_too() -> None:
    """What does not fit whole does not come back, and harms nothing."""
    for slots in (1, 12, 44, 48):
        bench = tiered(slots)
        fill(bench, 1, 2, 3)
        assert cached(bench, ask(9, words(1, 160)))[0] in (0, 156)


def test_files_are_found_after_a_restart(tmp_path: Path) -> None:
    def open_bench() -> TieredBench:
        folder = CacheFolder(tmp_path / "cache", MODEL, 1 << 20)
        return TieredBench(config(ROOM), 400, folder, FOUR)

    first = open_bench()
    cached(first, ask(0, words(1, 160)))
    first.close()
    second = open_bench()
    assert cached(second, ask(1, words(1, 160))) == [156]
    assert second.stats.totals.tier_read_blocks == 39 + GROUPS * SEEN
    second.close()


def test_nothing_comes_back_where_the_file_of_a_window_is_damaged(tmp_path: Path) -> None:
    def open_bench() -> TieredBench:
        folder = CacheFolder(tmp_path / "cache", MODEL, 1 << 20)
        return TieredBench(config(ROOM), 400, folder, FOUR)

    first = open_bench()
    cached(first, ask(0, words(1, 160)))
    first.close()
    key = Sequence(ask(0, words(1, 160)), BLOCK).block_key(38) + bytes([1])
    path = next((tmp_path / "cache").rglob(FileKey.of(MODEL, key).name + SUFFIX))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    second = open_bench()
    assert cached(second, ask(1, words(1, 160))) == [0]
    assert second.stats.totals.tier_restored_blocks == 0
    assert second.stats.totals.tier_refused_files == 1
    second.close()


def test_what_a_window_would_release_for_an_arrival_is_not_free() -> None:
    bench = tiered()
    bench.submit(ask(0, words(1, 100), 40))
    while not held(bench):
        bench.step()
    (windows,) = held(bench)
    free = bench.core._scheduler._cache._fetcher.num_free
    arrival = Arrival(Shipment(bench.tiers.blocks), range(0), b"", held=windows.held)
    bench.tiers._arrivals.append(arrival)
    assert bench.core._scheduler._cache._fetcher.num_free == free - len(windows.held)
    bench.tiers._arrivals.remove(arrival)
    bench.finish()


def run_branches(tree: Tree, sizes: tuple[int, int, int], cancelled: set[int]) -> int:
    """Runs prompts that begin alike, twice, some cancelled; returns how many blocks came back."""
    num_blocks, slots, depth = sizes
    bench = tiered(slots, num_blocks=num_blocks, depth=depth, max_context=256)
    prompts = {}
    for number, (start, branch, rest, tokens, drafts) in enumerate([*tree, *tree]):
        prompt = [*words(branch, start), END, *words(branch, rest)]
        if len(prompt) + tokens > bench.core.max_context:
            continue
        prompts[number] = prompt, tokens
        bench.submit(ask(number, prompt, tokens, drafts=drafts))
        if number - 1 in cancelled and number - 1 in prompts:
            bench.step(Cancel(number - 1))
        bench.core.check_integrity()
        if number % 3 == 2:
            while bench.core.has_work:
                bench.step()
                bench.core.check_integrity()
    for number, result in bench.finish().items():
        prompt, tokens = prompts[number]
        assert result.last is not None
        if result.last.finish_reason is not FinishReason.CANCELLED:
            assert result.token_ids == follows(prompt, tokens)
    bench.rest()
    return bench.stats.totals.tier_restored_blocks


@given(
    TREES,
    st.tuples(st.integers(90, 170), st.integers(8, 400), st.integers(1, 2)),
    st.sets(st.integers(0, 23)),
)
@settings(max_examples=40)
def test_whatever_leaves_and_comes_back_every_window_holds_what_it_sees(
    tree: Tree, sizes: tuple[int, int, int], cancelled: set[int]
) -> None:
    run_branches(tree, sizes, cancelled)


def run_all() -> None:
    """Runs what the planted mistakes are found by."""
    tree = [(50 - n % 3, n % 4, 7 * n % 60, 5 + 3 * n, 6 * (n % 3 == 0)) for n in range(12)]
    assert run_branches(tree, (110, 400, 2), {3, 8})
    bench = tiered()
    fill(bench, 1, 2, 3, 4)
    assert cached(bench, ask(9, words(1, 160))) == [156]
    test_nothing_comes_back_for_a_window_of_which_a_block_is_nowhere()
    test_windows_alone_come_back_where_the_device_has_the_rest()
    test_only_what_somebody_may_begin_behind_is_saved_of_windows()
    test_what_a_window_would_release_for_an_arrival_is_not_free()
    with TemporaryDirectory() as folder:
        test_nothing_comes_back_where_the_file_of_a_window_is_damaged(Path(folder))


def test_the_runs_of_the_planted_mistakes_are_right_without_them() -> None:
    run_all()


REAL_POLL = CacheTiers.poll
REAL_SEEN = WindowBlocks.seen_keys


def too_few(windows: WindowBlocks, seq: Sequence, end: int) -> list[BlockKey]:
    """Leaves the first block out that a window sees."""
    return REAL_SEEN(windows, seq, end)[GROUPS:]


def poll_swapped(tiers: CacheTiers) -> list[Arrival]:
    """Gives the blocks of windows each other's names."""
    arrivals = REAL_POLL(tiers)
    for arrival in arrivals:
        count, keys = len(arrival.positions), arrival.blocks.keys
        arrival.blocks.keys = [*keys[:count], *reversed(keys[count:])]
    return arrivals


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (WindowBlocks, "seen_keys", too_few),
        (CacheTiers, "poll", poll_swapped),
        (WindowBlocks, "count_held", lambda windows, blocks: 0),
        (Arrival, "is_whole", property(lambda arrival: False)),
    ],
    ids=["a block less", "names swapped", "held twice", "in parts"],
)
def test_planted_mistakes_are_found(
    owner: type, name: str, mistake: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(Exception):  # noqa: B017, PT011 - of whatever notices it first
        run_all()
