"""Snapshots of states leave the device and come back, together with the blocks before them.

The fake runner keeps a checksum of tokens in each state slot, and refuses a step that goes on from
others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from rocmforge.engine.cache.snapshots import Snapshots
from rocmforge.engine.cache.state_slots import StateSlots
from rocmforge.engine.cache.tiers.block_file import OVERHEAD, SUFFIX, read_entry
from rocmforge.engine.cache.tiers.folder import CacheFolder
from rocmforge.engine.ipc.messages import Cancel
from rocmforge.engine.ipc.params import NO_KEY, SamplingParams, Share
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.sequence.block_keys import BlockKey
from tests.support.fakes.fake_backend import STATE_BYTES, FakeConfig, FakeMistake, FakeRunner
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.cache.test_tiers import MODEL, Numbered, TieredBench, prompt
from tests.unit.engine.helpers import request

BLOCK = 4
STATEFUL = FakeConfig(block_size=BLOCK, num_blocks=24, pipeline_depth=2, num_slots=8, snapshots=3)
OUTPUT = SamplingParams(max_tokens=3, temperature=0.0)


def bench(
    config: FakeConfig = STATEFUL,
    folder: CacheFolder | None = None,
    *,
    slots: int = 100,
    states: int = 50,
    chosen: SchedulerLimits | None = None,
) -> TieredBench:
    return TieredBench(config, slots, folder, chosen, states)


OpenFolder = Callable[..., CacheFolder]


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[OpenFolder]:
    opened: list[CacheFolder] = []

    def open_one(model: bytes = MODEL) -> CacheFolder:
        opened.append(CacheFolder(tmp_path / "cache", model, 1 << 20))
        return opened[-1]

    yield open_one
    for folder in opened:
        folder.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_evicted_states_come_back_with_their_blocks(depth: int) -> None:
    tiered = bench(replace(STATEFUL, pipeline_depth=depth))
    assert tiered.ask(prompt(0)) == 0
    for number in range(1, 5):  # more than the device has room for
        assert tiered.ask(prompt(number)) == 0
    assert tiered.ask(prompt(0)) == 40
    totals = tiered.stats.totals
    assert totals.tier_restored_states == 1
    assert totals.tier_restored_blocks == 10
    assert tiered.stats.snapshots <= 3


def test_states_come_back_to_blocks_that_never_left() -> None:
    tiered = bench(replace(STATEFUL, num_blocks=200, snapshots=2))
    for number in range(4):
        tiered.ask(prompt(number))
    assert tiered.ask(prompt(0)) == 40
    totals = tiered.stats.totals
    assert (totals.tier_restored_states, totals.tier_restored_blocks) == (1, 0)


def test_blocks_come_back_to_states_that_never_left() -> None:
    tiered = bench(replace(STATEFUL, snapshots=60))
    for number in range(4):
        tiered.ask(prompt(number))
    assert tiered.ask(prompt(0)) == 40
    totals = tiered.stats.totals
    assert totals.tier_restored_states == 0
    assert totals.tier_restored_blocks > 0


def test_a_prompt_goes_on_behind_what_is_on_the_device() -> None:
    """The first message is, the second one is not."""
    tiered = bench(replace(STATEFUL, num_blocks=26, snapshots=4))
    first = prompt(0)[:13]
    whole = [*first, *Numbered(40)(3)]
    tiered.ask(whole)
    tiered.ask(first)
    for number in range(5, 8):
        tiered.ask(prompt(number)[:29])
        tiered.ask([*first, 5])
    assert tiered.ask(whole) == 52
    assert 0 < tiered.stats.totals.tier_restored_blocks < 13


def test_many_prompts_over_and_over_are_answered_rightly() -> None:
    """Each step checks the books, too."""
    tiered = bench(slots=60, states=9)
    tiered.ask_many(40, 5, np.random.default_rng(5))
    assert tiered.stats.totals.tier_restored_states > 10


def test_files_are_found_after_a_restart(open_folder: OpenFolder) -> None:
    first = bench(folder=open_folder())
    first.ask(prompt(0))
    first.close()
    second = bench(folder=open_folder())
    assert second.ask(prompt(0)) == 40
    totals = second.stats.totals
    assert (totals.tier_read_blocks, totals.tier_read_states) == (10, 1)


def test_a_host_cache_smaller_than_a_prompt_brings_it_back_in_parts(
    open_folder: OpenFolder,
) -> None:
    system, rest = prompt(0)[:21], prompt(1)
    first = bench(replace(STATEFUL, num_blocks=100), open_folder())
    first.ask(system)
    first.ask([*system, *rest])
    first.close()
    second = bench(replace(STATEFUL, num_blocks=100), open_folder(), slots=10, states=2)
    assert second.ask([*system, *rest]) == 60
    assert second.stats.totals.tier_read_states == 2


@pytest.mark.parametrize(
    ("model", "share", "salt"),
    [
        (bytes(32), NO_KEY, ""),
        (MODEL, Share(key=1, tenant=b"b" * 32), ""),
        (MODEL, NO_KEY, "x"),
    ],
)
def test_files_are_not_found_by_others(
    open_folder: OpenFolder, model: bytes, share: Share, salt: str
) -> None:
    first = bench(folder=open_folder())
    first.ask(prompt(0))
    first.close()
    second = bench(folder=open_folder(model))
    assert second.ask(prompt(0), share, salt) == 0
    assert second.stats.totals.tier_read_states == 0


def test_spoilt_states_are_not_used_nor_the_blocks_before_them(
    open_folder: OpenFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = bench(folder=open_folder())
    first.ask(prompt(0))
    first.close()
    size = OVERHEAD + STATE_BYTES
    files = [each for each in tmp_path.rglob("*" + SUFFIX) if each.stat().st_size == size]
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    second = bench(folder=open_folder())
    with caplog.at_level(logging.WARNING):
        assert second.ask(prompt(0)) == 0
    assert "is not used" in caplog.text
    assert second.stats.totals.tier_restored_blocks == 0
    second.core.check_integrity()
    assert second.ask(prompt(0)) == 40, "computed anew, it is found on the device"


def test_what_is_faster_computed_is_not_fetched() -> None:
    slow = replace(STATEFUL, copy_ns=10**9, step_ns=1000, token_ns=10)
    tiered = bench(slow)
    for number in range(5):
        tiered.ask(prompt(number))
    tiered.ask(prompt(0))  # tells how slow copies are
    for number in range(1, 5):
        tiered.ask(prompt(number))
    before = tiered.stats.totals.tier_restored_states
    assert tiered.ask(prompt(0)) == 0
    assert tiered.stats.totals.tier_restored_states == before


def test_a_host_without_room_loses_snapshots_and_nothing_else() -> None:
    tiered = bench(slots=30, states=1)
    for number in [*range(5), 0, 1, 0]:
        tiered.ask(prompt(number))


def test_a_conversation_saves_its_old_snapshots_once() -> None:
    """The host has room for a few; what went from there does not come again with each turn."""
    tiered = bench(replace(STATEFUL, num_blocks=200, snapshots=60), states=3)
    tokens = prompt(0)[:9]
    for number in range(12):
        tiered.ask(tokens)
        tiered.rest()
        tokens = [*tokens, *Numbered(8)(number)]
    totals = tiered.core.report().stats.totals
    assert totals.state_snapshots_evicted == 0
    assert totals.tier_saved_states == totals.state_snapshots_taken >= 12


def test_a_prompt_is_computed_if_the_host_has_no_slot_for_its_states(
    open_folder: OpenFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot is kept for a request that has been cancelled meanwhile."""
    may_read = Event()

    def read_later(*given: Any) -> None:
        assert may_read.wait(60)
        read_entry(*given)

    monkeypatch.setattr("rocmforge.engine.cache.tiers.folder.read_entry", read_later)
    first = bench(folder=open_folder())
    for number in range(2):
        first.ask(prompt(number))
    first.close()
    second = bench(folder=open_folder(), states=1)
    second.step(request(0, prompt(0), OUTPUT))
    assert second.tiers.arrivals
    second.step(Cancel(0), request(1, prompt(1), OUTPUT))
    while second.core.has_work:
        second.step()
    may_read.set()
    result = second.results[1]
    assert result.token_ids == continuation(prompt(1), 3)
    assert result.last is not None
    assert result.last.cached_tokens == 0
    second.rest()


@dataclass
class Told:
    """A watcher that remembers what it was told."""

    said: list[tuple[str, int]] = field(default_factory=list)

    def rests(self, block: int, key: BlockKey, position: int) -> None:
        self.said.append((f"rests at {position}", block))

    def leaves(self, block: int) -> None:
        self.said.append(("leaves", block))

    def forgets(self, block: int) -> None:
        self.said.append(("forgets", block))


def test_a_snapshot_that_is_not_trusted_is_not_saved_later() -> None:
    """Its slot gets the states of others."""
    told = Told()
    snapshots = Snapshots(StateSlots(2), 2, lambda key: True, Totals(), BLOCK, told)
    slot = snapshots.take_tail(8)
    snapshot = snapshots.keep(b"key", 8, slot, None, is_coming=False)
    assert snapshot is not None
    snapshots.rest(snapshot)
    snapshots.forget(snapshot)
    assert told.said == [("rests at 2", slot), ("forgets", slot)]


def test_the_last_snapshot_of_a_conversation_is_saved_last_and_old_ones_not_again() -> None:
    """What is saved last stays longest in the host's memory."""
    told = Told()
    snapshots = Snapshots(StateSlots(4), 4, lambda key: True, Totals(), BLOCK, told)
    last = None
    for end in (4, 8, 12):
        slot = snapshots.take_tail(end)
        last = snapshots.keep(b"%d" % end, end, slot, last, is_coming=False)
        if end > 4:
            snapshots.rest(last)
    assert [what for what, _ in told.said] == [f"rests at {place}" for place in (1, 2, 2, 3)]


@pytest.mark.parametrize("has_rested", [True, False])
def test_a_snapshot_that_gives_way_is_saved_if_it_was_to_be_and_has_been_lost(
    has_rested: bool,
) -> None:
    told = Told()
    snapshots = Snapshots(StateSlots(2), 1, lambda key: True, Totals(), BLOCK, told)
    snapshot = snapshots.keep(b"key", 4, snapshots.take_tail(4), None, is_coming=False)
    if has_rested:
        snapshots.rest(snapshot)
    snapshots.take_tail(99)
    rests = ["rests at 1", "rests at 1"] if has_rested else []
    assert [what for what, _ in told.said] == [*rests, "leaves"]


def test_nothing_is_saved_of_a_sequence_that_met_a_nan() -> None:
    tokens = prompt(0)
    (drawn,) = continuation(tokens, 1)
    tiered = bench(replace(STATEFUL, nan_token=drawn))
    tiered.run(request(0, tokens, OUTPUT))
    tiered.rest()
    assert tiered.core.report().stats.totals.tier_saved_states == 0


@pytest.mark.parametrize("forgotten", ["save_states", "restore_states"])
def test_a_fake_that_forgets_a_copy_is_found(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other tests rely on: states that did not come are not gone on from."""

    def forgets(runner: FakeRunner, places: object, slots: object) -> None:
        runner._num_copied += 1

    monkeypatch.setattr(FakeRunner, forgotten, forgets)
    tiered = bench()
    for number in range(5):
        tiered.ask(prompt(number))
    with pytest.raises(FakeMistake, match="the state in slot"):
        tiered.ask(prompt(0))
