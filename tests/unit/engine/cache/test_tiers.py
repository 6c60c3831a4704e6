"""Blocks that leave the device come back from the host's memory and from files."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from rocmforge.engine.cache.tiers.block_file import SUFFIX
from rocmforge.engine.cache.tiers.folder import CacheFolder
from rocmforge.engine.cache.tiers.tiers import CacheTiers
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import NO_KEY, SamplingParams, Share
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.limits import SchedulerLimits
from tests.support.fakes.fake_backend import FakeConfig, FakeRunner, make_runner
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.helpers import Bench, Clock, limits, request

BLOCK = 4
TINY = FakeConfig(block_size=BLOCK, num_blocks=24, pipeline_depth=2)
OUTPUT = SamplingParams(max_tokens=3, temperature=0.0)
MODEL = bytes(range(32))


@dataclass(frozen=True)
class Numbered:
    """Prompts that share nothing."""

    length: int = 41

    def __call__(self, number: int) -> list[int]:
        return [(7 * number + i) % 997 for i in range(self.length)]


prompt = Numbered()


class TieredBench(Bench):
    """A core whose blocks go to so many slots of the host, and to a folder if there is one.

    Snapshots of states go to other slots.
    """

    def __init__(
        self,
        config: FakeConfig = TINY,
        slots: int = 100,
        folder: CacheFolder | None = None,
        scheduler_limits: SchedulerLimits | None = None,
        states: int = 0,
    ) -> None:
        chosen = scheduler_limits or limits()
        self.clock = Clock()
        self.runner = make_runner(config, 4096, chosen.max_sequences, chosen.max_batched_tokens)
        totals = Totals()
        self.tiers = CacheTiers(self.runner, slots, folder, totals, states)
        self.core = EngineCore(self.runner, chosen, self.clock, totals, tiers=self.tiers)
        self.results = {}
        self._numbers = count()

    def ask(self, tokens: list[int], share: Share = NO_KEY, salt: str = "") -> int:
        """How many tokens of a prompt were not computed; its answer is checked."""
        number = next(self._numbers)
        sampling = structs.replace(OUTPUT, cache_salt=salt)
        result = self.run(structs.replace(request(number, tokens, sampling), share=share))[number]
        assert result.token_ids == continuation(tokens, 3)
        assert result.last is not None
        return result.last.cached_tokens

    def ask_many(self, rounds: int, most: int, random: np.random.Generator) -> None:
        """Asks up to so many prompts at once, some of them again; all answers are checked."""
        for _ in range(rounds):
            asked = {}
            for _ in range(int(random.integers(1, most + 1))):
                tokens = Numbered(int(random.integers(2, 60)))(int(random.integers(0, 6)))
                asked[next(self._numbers)] = tokens
            results = self.run(*(request(number, each, OUTPUT) for number, each in asked.items()))
            for number, tokens in asked.items():
                assert results[number].token_ids == continuation(tokens, 3)

    def rest(self) -> None:
        """Lets copies and files go on until nothing is left to do."""
        end = time.monotonic() + 60
        while self.core.tend():
            assert time.monotonic() < end, "it never ends"
            time.sleep(0.001)
            self.core.check_integrity()

    def close(self) -> None:
        self.rest()
        self.tiers.close()


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[object]:
    opened: list[CacheFolder] = []

    def open_one(model: bytes = MODEL, bound: int = 1 << 20) -> CacheFolder:
        opened.append(CacheFolder(tmp_path / "cache", model, bound))
        return opened[-1]

    yield open_one
    for folder in opened:
        folder.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_evicted_blocks_come_back_from_the_host(depth: int) -> None:
    bench = TieredBench(replace(TINY, pipeline_depth=depth))
    assert bench.ask(prompt(0)) == 0
    for number in range(1, 5):  # more than the device has room for
        assert bench.ask(prompt(number)) == 0
    assert bench.ask(prompt(0)) == 40
    assert bench.stats.totals.tier_restored_blocks > 0


def test_blocks_still_on_the_device_are_joined_by_those_of_the_host() -> None:
    bench = TieredBench()
    bench.ask(prompt(0))
    bench.ask(prompt(1)[:9])
    bench.ask([*prompt(0)[:20], *prompt(2)])
    bench.ask(prompt(3)[:33])
    assert bench.ask(prompt(0)) == 40
    assert 0 < bench.stats.totals.tier_restored_blocks < 10


def test_many_prompts_over_and_over_are_answered_rightly() -> None:
    """The fake runner's answers depend on every token in the cache."""
    bench = TieredBench(slots=40)
    bench.ask_many(30, 4, np.random.default_rng(3))
    assert bench.stats.totals.tier_restored_blocks > 20


def test_what_others_sent_does_not_come_back_to_a_key() -> None:
    bench = TieredBench()
    alice, bob = Share(key=1, tenant=b"a" * 32), Share(key=2, tenant=b"b" * 32)
    bench.ask(prompt(0), alice)
    for number in range(1, 5):
        bench.ask(prompt(number), alice)
    assert bench.ask(prompt(0), bob) == 0
    assert bench.ask(prompt(0), alice, salt="x") == 0
    assert bench.ask(prompt(0), alice) == 40


def test_what_is_faster_computed_is_not_fetched() -> None:
    slow = replace(TINY, copy_ns=10**9, step_ns=1000, token_ns=10)
    bench = TieredBench(slow, scheduler_limits=limits())
    for number in range(5):
        bench.ask(prompt(number))
    bench.ask(prompt(0))  # tells how slow copies are
    for number in range(1, 5):
        bench.ask(prompt(number))
    before = bench.stats.totals.tier_restored_blocks
    assert bench.ask(prompt(0)) < 40
    assert bench.stats.totals.tier_restored_blocks == before


def test_files_are_found_after_a_restart(open_folder) -> None:  # type: ignore[no-untyped-def]
    first = TieredBench(folder=open_folder())
    first.ask(prompt(0))
    first.close()
    second = TieredBench(folder=open_folder())
    assert second.ask(prompt(0)) == 40
    assert second.stats.totals.tier_read_blocks == 10


@pytest.mark.parametrize(
    ("model", "share", "salt"),
    [
        (bytes(32), NO_KEY, ""),
        (MODEL, Share(key=1, tenant=b"b" * 32), ""),
        (MODEL, NO_KEY, "x"),
    ],
)
def test_files_are_not_found_by_others(open_folder, model: bytes, share: Share, salt: str) -> None:  # type: ignore[no-untyped-def]
    first = TieredBench(folder=open_folder())
    first.ask(prompt(0))
    first.close()
    second = TieredBench(folder=open_folder(model))
    assert second.ask(prompt(0), share, salt) == 0


def _flip(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


@pytest.mark.parametrize(
    "spoil",
    [
        _flip,
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: data[: len(data) // 2],
        lambda data: data[:10],
        lambda data: b"",
        lambda data: data + b"x",
    ],
    ids=["content", "magic", "hash", "half", "header_alone", "empty", "longer"],
)
def test_spoilt_files_are_not_used(open_folder, tmp_path: Path, spoil, caplog) -> None:  # type: ignore[no-untyped-def]
    first = TieredBench(folder=open_folder())
    first.ask(prompt(0))
    first.close()
    files = list(tmp_path.rglob("*" + SUFFIX))
    assert len(files) == 10
    for file in files:
        file.write_bytes(spoil(file.read_bytes()))
    second = TieredBench(folder=open_folder())
    with caplog.at_level(logging.WARNING):
        assert second.ask(prompt(0)) == 0
    assert "is not used" in caplog.text
    assert second.stats.totals.tier_refused_files > 0
    assert second.ask(prompt(0)) == 40, "computed anew, it is found on the device"


def test_one_file_in_the_place_of_another_is_not_used(open_folder, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = TieredBench(folder=open_folder())
    first.ask(prompt(0))
    first.close()
    files = list(tmp_path.rglob("*" + SUFFIX))
    contents = [file.read_bytes() for file in files]
    for file, data in zip(files, contents[1:] + contents[:1], strict=True):
        file.write_bytes(data)
    second = TieredBench(folder=open_folder())
    assert second.ask(prompt(0)) == 0


def test_a_file_missing_in_the_middle_ends_what_is_found(open_folder, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = open_folder()
    first = TieredBench(folder=folder)
    first.ask(prompt(0)[:21])
    first.close()
    kept = {file.name for file in tmp_path.rglob("*" + SUFFIX)}
    third = TieredBench(folder=open_folder())
    third.ask(prompt(0))
    third.close()
    second = TieredBench(folder=open_folder())
    for file in tmp_path.rglob("*" + SUFFIX):
        if file.name in kept:
            file.unlink()  # as another process would, for want of room
            break
    assert second.ask(prompt(0)) < 20


def test_files_are_for_their_owner_alone(open_folder, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = TieredBench(folder=open_folder())
    first.ask(prompt(0))
    first.close()
    files = list(tmp_path.rglob("*" + SUFFIX))
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert {file.parent.stat().st_mode & 0o777 for file in files} == {0o700}
    assert not [each for each in tmp_path.rglob("*") if each.name.endswith(".part")]


def test_files_stay_within_their_bound(open_folder, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    bound = 30 * 150
    bench = TieredBench(folder=open_folder(bound=bound))
    for number in range(12):
        bench.ask(prompt(number))
        bench.rest()
        used = sum(file.stat().st_size for file in tmp_path.rglob("*" + SUFFIX))
        assert used <= bound
    bench.close()
    assert used > bound / 2
    assert TieredBench(folder=open_folder(bound=bound)).ask(prompt(11)) == 40


def test_no_more_is_remembered_of_files_than_there_are(open_folder, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = open_folder(bound=30 * 150)
    bench = TieredBench(folder=folder)
    for number in range(12):
        bench.ask(prompt(number))
        bench.rest()
    assert len(folder._names) == len(list(tmp_path.rglob("*" + SUFFIX)))
    assert len(folder._touched) <= len(folder._names) < 50, "of 120"


def test_a_full_disk_is_said_once_and_serving_goes_on(open_folder, caplog, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rocmforge.engine.cache.tiers.folder.write_entry", no_space)
    bench = TieredBench(folder=open_folder(), slots=12)
    with caplog.at_level(logging.WARNING):
        for number in range(6):
            bench.ask(prompt(number))
            bench.rest()
    assert caplog.text.count("No space left on device") == 1
    assert bench.stats.totals.tier_written_blocks == 0


def test_a_host_without_room_loses_blocks_and_nothing_else() -> None:
    bench = TieredBench(slots=3)
    for number in [*range(5), 0, 1, 0]:
        bench.ask(prompt(number))
    assert bench.runner.info.num_blocks == 24


def test_a_fake_that_forgets_a_copy_is_found(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """What the other tests rely on: a block that did not come makes an answer wrong."""
    whole = FakeRunner.restore_blocks
    monkeypatch.setattr(
        FakeRunner, "restore_blocks", lambda self, *pair: whole(self, *(each[:1] for each in pair))
    )
    bench = TieredBench()
    for number in range(5):
        bench.ask(prompt(number))
    with pytest.raises(AssertionError):
        bench.ask(prompt(0))


def test_files_of_prefixes_in_use_are_not_the_first_to_go(open_folder, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The first prompt is always found on the device, the others are new each time."""
    monkeypatch.setattr("rocmforge.engine.cache.tiers.folder._TOUCH_S", 0.0)
    bound = 30 * 150
    bench = TieredBench(replace(TINY, num_blocks=40), folder=open_folder(bound=bound), slots=200)
    for number in range(1, 12):
        bench.ask(prompt(0))
        bench.ask(prompt(number))
        bench.rest()
    bench.close()
    later = TieredBench(folder=open_folder(bound=bound))
    assert later.ask(prompt(0)) == 40
    assert later.ask(prompt(1)) == 0
