"""Blocks leave the device for the host's memory and for files, and come back from there.

A block is saved when no sequence uses it any more, in batches beside the steps, and at the latest
before its place on the device is taken by another. Saved blocks lie in slots of pinned memory, and
are written to files from there if there is a folder. They come back in the other direction: from a
file to a slot, from a slot to a block that was taken for it.

Nothing here waits. `start` begins what can begin, and `poll` takes in what has ended.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rocmforge.backend.protocol import CopiesBlocks, UInt8Array
from rocmforge.engine.cache.tiers.folder import CacheFolder, ReadResult
from rocmforge.engine.cache.tiers.host_slots import HostEntry, HostSlots
from rocmforge.engine.cache.tiers.worth import ComputeNs, CopyTime, worth_copying
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.sequence.block_keys import BlockKey

_BATCH_BYTES: Final = 64 << 20
"""Of blocks that are saved at a time, unless their places are needed."""
_WRITES: Final = 4
"""Files that wait for the writing thread: what is given to it can't be given up any more."""


@dataclass(slots=True, eq=False)
class Arrival:
    """Blocks of one prefix on their way to the device."""

    keys: list[BlockKey]
    entries: list[HostEntry]
    reads: list[Future[ReadResult] | None]  # None: it need not be read
    positions: range
    held: list[int] = field(default_factory=list)  # blocks before them, which must stay
    blocks: list[int] = field(default_factory=list)  # where they go
    num_valid: int = 0  # of the blocks, from the first on, once it has ended
    is_copying: bool = False


@dataclass(frozen=True, slots=True)
class _Save:
    keys: list[BlockKey]


class CacheTiers:
    """The tiers below the cache of one runner.

    Args:
        runner: copies blocks.
        num_slots: blocks of the host's memory; at least 1.
        folder: where files are; None = there are none.
        totals: counters to continue.

    Raises:
        OutOfMemory: the host has not so much memory.
    """

    def __init__(
        self, runner: CopiesBlocks, num_slots: int, folder: CacheFolder | None, totals: Totals
    ) -> None:
        self._runner = runner
        self._memory: UInt8Array = runner.open_host_blocks(num_slots)
        self._slots = HostSlots(num_slots)
        self._folder = folder
        self._totals = totals
        self._block_size = runner.info.block_size
        self._block_bytes = runner.info.block_bytes
        self._batch = max(1, _BATCH_BYTES // self._block_bytes)
        self._resting: OrderedDict[int, tuple[BlockKey, int]] = OrderedDict()
        self._leaving: list[tuple[int, BlockKey, int]] = []
        self._copies: deque[_Save | Arrival] = deque()
        self._arrivals: list[Arrival] = []
        self._unwritten: OrderedDict[BlockKey, None] = OrderedDict()
        self._writes: deque[tuple[BlockKey, Future[frozenset[str] | None]]] = deque()
        self._restoring, self._reading = CopyTime(), CopyTime()

    @property
    def note(self) -> str:
        """The sizes, for the operator, in a line."""
        blocks = self._slots.num_slots
        files = "" if self._folder is None else f"; files in {self._folder}"
        return (
            f"host cache   {blocks:,} blocks, {blocks * self._block_size:,} tokens, "
            f"{self._memory.nbytes / 2**30:.1f} GiB of the host's memory{files}"
        )

    # --- what happens to the blocks of the device ---

    def rests(self, block: int, key: BlockKey, position: int) -> None:
        """Learns that no sequence uses a block any more, which stays as it is for now."""
        if self._slots.find(key) is None:
            self._resting[block] = key, position
        else:
            self._slots.use(key)
        if self._folder is not None:
            self._folder.touch(key, position)

    def leaves(self, block: int) -> None:
        """Learns that the next step may overwrite a block: it is saved now or never."""
        resting = self._resting.pop(block, None)
        if resting is not None:
            self._leaving.append((block, *resting))

    def forgets(self, block: int) -> None:
        """Learns that what a block holds is not to be trusted."""
        self._resting.pop(block, None)

    # --- what comes back ---

    @property
    def arrivals(self) -> Sequence[Arrival]:
        """All that are on their way."""
        return self._arrivals

    def is_arriving(self, key: BlockKey) -> bool:
        """Returns whether a block is on its way to the device."""
        return any(key in arrival.keys for arrival in self._arrivals)

    def fetch(
        self, keys: Sequence[BlockKey], position: int, compute_ns: ComputeNs
    ) -> Arrival | None:
        """Begins to bring blocks back, as many of the first ones as are found and worth it.

        Args:
            keys: of consecutive blocks of a prefix.
            position: of the first of them.
            compute_ns: what computing them takes.

        Returns:
            The arrival, which needs to be given a block for each of its keys before `start`; None
            if nothing comes.
        """
        costs = []
        for key in keys:
            entry = self._slots.find(key)
            if entry is None and self._folder is not None and self._folder.has(key):
                costs.append(self._restoring.block_ns + self._reading.block_ns)
            elif entry is not None and entry.is_there:
                costs.append(self._restoring.block_ns)
            else:
                break
        size = self._block_size
        count = worth_copying(position * size, size, costs, compute_ns)
        if count < len(costs):
            self._restoring.hope()
            self._reading.hope()
        arrival = Arrival([], [], [], range(position, position + count))
        for key, place in zip(keys, arrival.positions, strict=False):
            entry, reading = self._slots.find(key), None
            if entry is not None:
                entry.users += 1
                self._slots.use(key)
            else:
                assert self._folder is not None
                entry = self._slots.take(key, place, may_lose=False)
                if entry is None:
                    break
                entry.is_written = True
                reading = self._folder.read(key, self._memory[entry.slot])
            arrival.keys.append(key)
            arrival.entries.append(entry)
            arrival.reads.append(reading)
        if not arrival.keys:
            return None
        self._arrivals.append(arrival)
        return arrival

    # --- what goes on meanwhile ---

    @property
    def is_busy(self) -> bool:
        """Whether anything will go on by itself."""
        can_write = self._folder is not None and not self._folder.is_paused
        return bool(
            self._copies or self._arrivals or self._writes or (can_write and self._unwritten)
        )

    def start(self) -> None:
        """Begins copies; a step that is submitted next may overwrite what was said to leave.

        Raises:
            EngineError: the device failed.
        """
        saved, self._leaving = self._leaving, []
        self._save(saved, may_lose=True)
        if self._resting and not any(isinstance(each, _Save) for each in self._copies):
            batch = [(block, *self._resting[block]) for block in list(self._resting)[: self._batch]]
            for block in self._save(batch, may_lose=False):
                del self._resting[block]
        for arrival in self._arrivals:
            if not arrival.is_copying and all(each is None for each in arrival.reads):
                self._restore(arrival)

    def poll(self) -> list[Arrival]:
        """Takes in what has ended; returns the arrivals that have, whose blocks are complete.

        Raises:
            EngineError: the device failed.
        """
        for duration_ns in self._runner.finished_copies():
            copy = self._copies.popleft()
            if isinstance(copy, _Save):
                self._take_saved(copy)
            else:
                self._restoring.observe(copy.num_valid, duration_ns)
                self._end(copy)
        for arrival in self._arrivals:
            self._take_read(arrival)
        if self._folder is not None:
            self._write(self._folder)
        ended = [each for each in self._arrivals if not each.entries]
        self._arrivals = [each for each in self._arrivals if each.entries]
        return ended

    def close(self) -> None:
        """Lets the threads end; no copy may be running."""
        if self._folder is not None:
            self._folder.close()

    def check_integrity(self) -> None:
        """Asserts that the slots are accounted for."""
        self._slots.check_integrity()

    def _save(self, blocks: list[tuple[int, BlockKey, int]], *, may_lose: bool) -> list[int]:
        """Begins saving blocks; returns those that need no more attention."""
        done, saved = [], []
        for block, key, position in blocks:
            if self._slots.find(key) is None:
                entry = self._slots.take(key, position, may_lose=may_lose)
                if entry is None:
                    continue
                entry.is_written = self._folder is None or self._folder.has(key)
                saved.append((block, entry.slot, key))
            done.append(block)
        if saved:
            chosen, slots, keys = zip(*saved, strict=True)
            self._runner.save_blocks(np.array(chosen, np.int32), np.array(slots, np.int32))
            self._copies.append(_Save(list(keys)))
        return done

    def _take_saved(self, save: _Save) -> None:
        for key in save.keys:
            entry = self._slots.find(key)
            assert entry is not None, "a slot in use is kept"
            entry.users -= 1
            entry.is_there = True
            if not entry.is_written:
                self._unwritten[key] = None
        self._totals.tier_saved_blocks += len(save.keys)
        self._totals.tier_saved_bytes += len(save.keys) * self._block_bytes

    def _restore(self, arrival: Arrival) -> None:
        """Begins copying what was found, from the first block on without a gap."""
        assert len(arrival.blocks) == len(arrival.keys), "each has its place"
        there = [entry.is_there for entry in arrival.entries]
        count = arrival.num_valid = there.index(False) if False in there else len(there)
        if not count:
            self._end(arrival)
            return
        slots = [entry.slot for entry in arrival.entries[:count]]
        arrival.is_copying = True
        self._runner.restore_blocks(
            np.array(arrival.blocks[:count], np.int32), np.array(slots, np.int32)
        )
        self._copies.append(arrival)
        self._totals.tier_restored_blocks += count
        self._totals.tier_restored_bytes += count * self._block_bytes

    def _end(self, arrival: Arrival) -> None:
        """Gives the slots of an arrival back, which is over then."""
        for key, entry in zip(arrival.keys, arrival.entries, strict=True):
            entry.users -= 1
            if not entry.is_there and not entry.users:
                self._slots.drop(key)
        arrival.entries = []

    def _take_read(self, arrival: Arrival) -> None:
        for i, reading in enumerate(arrival.reads):
            if reading is None or not reading.done():
                continue
            arrival.reads[i] = None
            result, key = reading.result(), arrival.keys[i]
            assert self._folder is not None
            self._folder.take_read(key, result)
            arrival.entries[i].is_there = result.found
            if result.found:
                self._reading.observe(1, 1e9 * result.seconds)
                self._totals.tier_read_blocks += 1
            self._totals.tier_refused_files += result.refused

    def _write(self, folder: CacheFolder) -> None:
        while self._writes and self._writes[0][1].done():
            key, writing = self._writes.popleft()
            entry = self._slots.find(key)
            assert entry is not None, "a slot in use is kept"
            entry.users -= 1
            entry.is_written = True  # or given up: it will not be tried again
            if folder.take_written(key, writing.result()):
                self._totals.tier_written_blocks += 1
        while self._unwritten and len(self._writes) < _WRITES and not folder.is_paused:
            key, _ = self._unwritten.popitem(last=False)
            entry = self._slots.find(key)
            if entry is None:  # its slot was needed: what is written late is lost
                continue
            entry.users += 1
            writing = folder.write(key, self._memory[entry.slot], entry.position)
            self._writes.append((key, writing))
