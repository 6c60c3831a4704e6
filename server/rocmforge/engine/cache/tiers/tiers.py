"""The tiers below the device: where blocks and snapshots of states go when it gives them up.

A block is saved when no sequence uses it any more, a snapshot when the sequence that left it has
ended; in batches beside the steps, and at the latest before its place on the device is taken by
another. What is saved lies in slots of pinned memory, and is written to files from there if there
is a folder. It comes back in the other direction: from a file to a slot, from a slot to a place
that was taken for it. Blocks and the states at their end come back together.

Nothing here waits. `start` begins what can begin, and `poll` takes in what has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from rocmforge.backend.protocol import CopiesBlocks
from rocmforge.backend.step import NO_SLOT
from rocmforge.engine.cache.tiers.folder import CacheFolder, ReadResult
from rocmforge.engine.cache.tiers.host_slots import HostEntry
from rocmforge.engine.cache.tiers.pool import TierPool
from rocmforge.engine.cache.tiers.worth import ComputeNs, worth_copying
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.sequence.block_keys import BlockKey
from rocmforge.engine.sequence.states import Snapshot

_WRITES: Final = 4
"""Files that wait for the writing thread: what is given to it can't be given up any more."""


@dataclass(slots=True, eq=False)
class Shipment:
    """Entries of one kind on their way to the device."""

    pool: TierPool
    keys: list[BlockKey] = field(default_factory=list)
    entries: list[HostEntry] = field(default_factory=list)
    reads: list[Future[ReadResult] | None] = field(default_factory=list)  # None: it need not be
    places: list[int] = field(default_factory=list)  # where they go on the device
    num_valid: int = 0  # from the first on, once all has been read

    def hold(self, keys: Sequence[BlockKey], position: int) -> int:
        """Keeps entries in their slots, or takes slots for those in files, as far as there are any.

        Args:
            keys: of entries.
            position: of the first of them.

        Returns:
            For how many.
        """
        for place, key in enumerate(keys, position):
            entry = self.pool.hold(key, place)
            if entry is None:
                return place - position
            self.keys.append(key)
            self.entries.append(entry)
            self.reads.append(None)
        return len(keys)

    @property
    def is_read(self) -> bool:
        """Whether all is in the host's memory, or is not to be had."""
        return all(each is None for each in self.reads)


@dataclass(slots=True, eq=False)
class Arrival:
    """Blocks of one prefix on their way to the device, and what else is needed at their end."""

    blocks: Shipment  # those that windows see at the end are behind those of the prefix
    positions: range  # of the blocks of the prefix
    target: BlockKey  # the key of the last block of the prefix, perhaps on the device
    brings_windows: bool = False
    states: Shipment | None = None  # None: none, or they are on the device
    held: list[int] = field(default_factory=list)  # blocks before them, which must stay
    snapshot: Snapshot | None = None  # what must stay: see `states`
    base: Snapshot | None = None  # the last snapshot before them
    copies: int = 0  # that have begun and not ended
    is_copying: bool = False
    is_over: bool = False

    @property
    def shipments(self) -> list[Shipment]:
        """All that come."""
        return [self.blocks] if self.states is None else [self.blocks, self.states]

    @property
    def is_whole(self) -> bool:
        """Whether a part of it would come in vain."""
        return self.brings_windows or self.states is not None or self.snapshot is not None

    @property
    def state_slot(self) -> int:
        """The slot that states come to; NO_SLOT if none do."""
        return NO_SLOT if self.states is None else self.states.places[0]

    @property
    def brings_states(self) -> bool:
        """Whether the states have come, once it is over."""
        return self.states is not None and self.states.num_valid > 0


@dataclass(frozen=True, slots=True)
class _Save:
    pool: TierPool
    keys: list[BlockKey]


@dataclass(frozen=True, slots=True)
class _Restore:
    arrival: Arrival
    shipment: Shipment


class CacheTiers:
    """The tiers below the cache of one runner.

    Args:
        runner: copies blocks.
        num_slots: blocks of the host's memory; at least 1.
        folder: where files are; None = there are none.
        totals: counters to continue.
        num_states: snapshots of states in the host's memory; at least 1 if the model has states.

    Raises:
        OutOfMemory: the host has not so much memory.
    """

    def __init__(
        self,
        runner: CopiesBlocks,
        num_slots: int,
        folder: CacheFolder | None,
        totals: Totals,
        num_states: int = 0,
    ) -> None:
        self._runner = runner
        memory = runner.open_host_blocks(num_slots)
        self.blocks: Final = TierPool(
            memory, folder, b"", runner.save_blocks, runner.restore_blocks
        )
        self.states: TierPool | None = None
        if num_states:
            memory = runner.open_host_states(num_states)
            self.states = TierPool(
                memory, folder, b"states ", runner.save_states, runner.restore_states
            )
        self._pools = [self.blocks] if self.states is None else [self.states, self.blocks]
        self._folder = folder
        self._totals = totals
        self._block_size = runner.info.block_size
        self._copies: deque[_Save | _Restore] = deque()
        self._arrivals: list[Arrival] = []
        self._writes: deque[tuple[TierPool, BlockKey, Future[frozenset[str] | None]]] = deque()

    @property
    def note(self) -> str:
        """The sizes, for the operator, in a line."""
        blocks = self.blocks.slots.num_slots
        snapshots = ""
        if self.states is not None:
            snapshots = f"{self.states.slots.num_slots:,} snapshots of states, "
        files = "" if self._folder is None else f"; files in {self._folder}"
        nbytes = sum(pool.memory.nbytes for pool in self._pools)
        return (
            f"host cache   {blocks:,} blocks, {blocks * self._block_size:,} tokens, {snapshots}"
            f"{nbytes / 2**30:.1f} GiB of the host's memory{files}"
        )

    # --- what comes back ---

    @property
    def arrivals(self) -> Sequence[Arrival]:
        """All that are on their way."""
        return self._arrivals

    def worth_fetching(self, keys: Sequence[BlockKey], position: int, compute_ns: ComputeNs) -> int:
        """Returns how many of the first blocks are found and worth it, of a model without states.

        Args:
            keys: of consecutive blocks of a prefix.
            position: of the first of them.
            compute_ns: what computing them takes.
        """
        costs, size = self.blocks.costs(keys), self._block_size
        count = worth_copying(position * size, size, costs, compute_ns)
        if count < len(costs):
            self.blocks.hope()
        return count

    def fetch(
        self,
        keys: Sequence[BlockKey],
        position: int,
        target: BlockKey,
        *,
        with_states: bool = False,
        window_keys: Sequence[BlockKey] = (),
    ) -> Arrival | None:
        """Begins to bring blocks back that are found, and what else is needed at their end.

        Args:
            keys: of consecutive blocks of a prefix.
            position: of the first of them.
            target: the key of the last block of the prefix.
            with_states: whether the states at its end are to come.
            window_keys: of the blocks that windows see there, if they are to come.

        Returns:
            The arrival, which needs to be given a place for each of its keys before `start`; None
            if nothing comes, for want of slots.
        """
        blocks, stop = Shipment(self.blocks), position + len(keys)
        blocks.hold(keys, position)
        arrival = Arrival(blocks, range(position, position + len(blocks.keys)), target)
        missing = len(keys) - len(blocks.keys)
        if with_states:
            assert self.states is not None, "there are no states"
            arrival.states = Shipment(self.states)
            missing += 1 - arrival.states.hold([target], stop)
        if window_keys:
            arrival.brings_windows = True
            missing += len(window_keys) - blocks.hold(window_keys, stop)
        if (arrival.is_whole and missing) or not any(each.keys for each in arrival.shipments):
            self._release(arrival)
            return None
        for shipment in arrival.shipments:
            self._read(shipment)
        self._arrivals.append(arrival)
        return arrival

    def _read(self, shipment: Shipment) -> None:
        """Begins to read what is in files."""
        pool = shipment.pool
        for i, (key, entry) in enumerate(zip(shipment.keys, shipment.entries, strict=True)):
            if not entry.is_there:
                assert self._folder is not None, "what is nowhere does not come"
                target = pool.memory[entry.slot]
                shipment.reads[i] = self._folder.read(pool.file_key(key), target)

    # --- what goes on meanwhile ---

    @property
    def is_busy(self) -> bool:
        """Whether anything will go on by itself."""
        can_write = self._folder is not None and not self._folder.is_paused
        return bool(
            self._copies
            or self._arrivals
            or self._writes
            or (can_write and any(pool.unwritten for pool in self._pools))
        )

    def start(self) -> None:
        """Begins copies; a step that is submitted next may overwrite what was said to leave.

        Raises:
            EngineError: the device failed.
        """
        for pool in self._pools:
            self._note_save(pool, pool.save_leaving())
        if not any(isinstance(each, _Save) for each in self._copies):
            for pool in self._pools:
                self._note_save(pool, pool.save_resting())
        for arrival in self._arrivals:
            if not arrival.is_copying and all(each.is_read for each in arrival.shipments):
                self._restore(arrival)

    def _count(
        self, what: Literal["saved", "restored", "written", "read"], pool: TierPool, count: int
    ) -> None:
        name = f"tier_{what}_{'blocks' if pool is self.blocks else 'states'}"
        setattr(self._totals, name, getattr(self._totals, name) + count)

    def _note_save(self, pool: TierPool, keys: list[BlockKey]) -> None:
        if keys:
            self._copies.append(_Save(pool, keys))

    def poll(self) -> list[Arrival]:
        """Takes in what has ended; returns the arrivals that have, whose places are complete.

        Raises:
            EngineError: the device failed.
        """
        for duration_ns in self._runner.finished_copies():
            copy = self._copies.popleft()
            if isinstance(copy, _Save):
                self._take_saved(copy)
                continue
            shipment, arrival = copy.shipment, copy.arrival
            shipment.pool.restoring.observe(shipment.num_valid, duration_ns)
            arrival.copies -= 1
            if not arrival.copies:
                self._release(arrival)
        for arrival in self._arrivals:
            for shipment in arrival.shipments:
                self._take_read(shipment)
        if self._folder is not None:
            self._write(self._folder)
        ended = [each for each in self._arrivals if each.is_over]
        self._arrivals = [each for each in self._arrivals if not each.is_over]
        return ended

    def close(self) -> None:
        """Lets the threads end; no copy may be running."""
        if self._folder is not None:
            self._folder.close()

    def check_integrity(self) -> None:
        """Asserts that the slots are accounted for."""
        for pool in self._pools:
            pool.slots.check_integrity()

    def _take_saved(self, save: _Save) -> None:
        save.pool.take_saved(save.keys)
        self._totals.tier_saved_bytes += len(save.keys) * save.pool.entry_bytes
        self._count("saved", save.pool, len(save.keys))

    def _restore(self, arrival: Arrival) -> None:
        """Begins copying what was found, from the first block on without a gap.

        Blocks come in vain without what is needed at their end, and that without a block.
        """
        for shipment in arrival.shipments:
            assert len(shipment.places) == len(shipment.keys), "each has its place"
            there = [entry.is_there for entry in shipment.entries]
            shipment.num_valid = there.index(False) if False in there else len(there)
        if arrival.is_whole and any(each.num_valid < len(each.keys) for each in arrival.shipments):
            for shipment in arrival.shipments:
                shipment.num_valid = 0
        for shipment in arrival.shipments:
            self._start_restoring(arrival, shipment)
        if not arrival.copies:
            self._release(arrival)

    def _start_restoring(self, arrival: Arrival, shipment: Shipment) -> None:
        count, pool = shipment.num_valid, shipment.pool
        if not count:
            return
        slots = [entry.slot for entry in shipment.entries[:count]]
        pool.restore(np.array(shipment.places[:count], np.int32), np.array(slots, np.int32))
        arrival.is_copying = True
        arrival.copies += 1
        self._copies.append(_Restore(arrival, shipment))
        self._totals.tier_restored_bytes += count * pool.entry_bytes
        self._count("restored", pool, count)

    def _release(self, arrival: Arrival) -> None:
        """Gives the slots of an arrival back, which is over then."""
        for shipment in arrival.shipments:
            for key, entry in zip(shipment.keys, shipment.entries, strict=True):
                shipment.pool.release(key, entry)
        arrival.is_over = True

    def _take_read(self, shipment: Shipment) -> None:
        for i, reading in enumerate(shipment.reads):
            if reading is None or not reading.done():
                continue
            shipment.reads[i] = None
            result, pool = reading.result(), shipment.pool
            assert self._folder is not None
            self._folder.take_read(pool.file_key(shipment.keys[i]), result)
            shipment.entries[i].is_there = result.found
            if result.found:
                pool.reading.observe(1, 1e9 * result.seconds)
                self._count("read", pool, 1)
            self._totals.tier_refused_files += result.refused

    def _write(self, folder: CacheFolder) -> None:
        while self._writes and self._writes[0][2].done():
            pool, key, writing = self._writes.popleft()
            entry = pool.slots.find(key)
            assert entry is not None, "a slot in use is kept"
            entry.users -= 1
            entry.is_written = True  # or given up: it will not be tried again
            if folder.take_written(pool.file_key(key), writing.result()):
                self._count("written", pool, 1)
        for pool in self._pools:
            while pool.unwritten and len(self._writes) < _WRITES and not folder.is_paused:
                key, _ = pool.unwritten.popitem(last=False)
                entry = pool.slots.find(key)
                if entry is None:  # its slot was needed: what is written late is lost
                    continue
                entry.users += 1
                writing = folder.write(pool.file_key(key), pool.memory[entry.slot], entry.position)
                self._writes.append((pool, key, writing))
