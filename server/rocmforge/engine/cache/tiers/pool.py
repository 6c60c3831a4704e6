"""Entries of one kind in the tiers, blocks or snapshots of states, and what is to be saved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from rocmforge.backend.arrays import Int32Array, UInt8Array
from rocmforge.engine.cache.tiers.folder import CacheFolder
from rocmforge.engine.cache.tiers.host_slots import HostEntry, HostSlots
from rocmforge.engine.cache.tiers.worth import CopyTime
from rocmforge.engine.sequence.block_keys import BlockKey

_BATCH_BYTES: Final = 64 << 20
"""Of entries that are saved at a time, unless their places are needed."""

Copy = Callable[[Int32Array, Int32Array], None]


class TierPool:
    """Entries of one kind in the host's memory, and places of the device that are to be saved.

    Implements `Watcher`.

    Args:
        memory: of the host, [slots, bytes of an entry].
        folder: where files are; None = there are none.
        kind: tells keys of files apart from those of the other kind.
        save: starts copying places of the device to slots.
        restore: starts copying slots to places of the device.
    """

    def __init__(
        self,
        memory: UInt8Array,
        folder: CacheFolder | None,
        kind: bytes,
        save: Copy,
        restore: Copy,
    ) -> None:
        self.memory = memory
        self.slots = HostSlots(len(memory))
        self.restore: Final = restore
        self.restoring, self.reading = CopyTime(), CopyTime()
        self.unwritten: OrderedDict[BlockKey, None] = OrderedDict()
        self._folder = folder
        self._kind = kind
        self._save = save
        self._batch = max(1, _BATCH_BYTES // self.entry_bytes)
        self._resting: OrderedDict[int, tuple[BlockKey, int]] = OrderedDict()
        self._leaving: list[tuple[int, BlockKey, int]] = []

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry."""
        return int(self.memory.shape[1])

    def file_key(self, key: BlockKey) -> BlockKey:
        """Returns what an entry is known by in the folder."""
        return self._kind + key

    # --- what happens on the device ---

    def rests(self, place: int, key: BlockKey, position: int) -> None:
        """Learns that nobody changes a place from now on, which stays as it is for now."""
        if self.slots.find(key) is None:
            self._resting[place] = key, position
        else:
            self.slots.use(key)
        if self._folder is not None:
            self._folder.touch(self.file_key(key), position)

    def leaves(self, place: int) -> None:
        """Learns that the next step may overwrite a place: it is saved now or never."""
        resting = self._resting.pop(place, None)
        if resting is not None:
            self._leaving.append((place, *resting))

    def forgets(self, place: int) -> None:
        """Learns that what a place holds is not to be trusted."""
        self._resting.pop(place, None)

    def save_leaving(self) -> list[BlockKey]:
        """Begins saving what leaves; returns the keys of what is copied."""
        saved, self._leaving = self._leaving, []
        return self._start_saving(saved, may_lose=True)[1]

    def save_resting(self) -> list[BlockKey]:
        """Begins saving some of what rests; returns the keys of what is copied."""
        batch = [(place, *self._resting[place]) for place in list(self._resting)[: self._batch]]
        done, keys = self._start_saving(batch, may_lose=False)
        for place in done:
            del self._resting[place]
        return keys

    def _start_saving(
        self, places: list[tuple[int, BlockKey, int]], *, may_lose: bool
    ) -> tuple[list[int], list[BlockKey]]:
        """Begins saving; returns places that need no more attention, and keys of the copied."""
        done, saved = [], []
        for place, key, position in places:
            if self.slots.find(key) is None:
                entry = self.slots.take(key, position, may_lose=may_lose)
                if entry is None:
                    continue
                entry.is_written = self._folder is None or self._folder.has(self.file_key(key))
                saved.append((place, entry.slot, key))
            done.append(place)
        if not saved:
            return done, []
        chosen, slots, keys = zip(*saved, strict=True)
        self._save(np.array(chosen, np.int32), np.array(slots, np.int32))
        return done, list(keys)

    def take_saved(self, keys: Sequence[BlockKey]) -> None:
        """Takes in that entries have been copied to the host."""
        for key in keys:
            entry = self.slots.find(key)
            assert entry is not None, "a slot in use is kept"
            entry.users -= 1
            entry.is_there = True
            if not entry.is_written:
                self.unwritten[key] = None

    # --- what could come back ---

    def cost(self, key: BlockKey) -> float | None:
        """Returns the nanoseconds that it takes to bring an entry back; None: there is none."""
        entry = self.slots.find(key)
        if entry is None and self._folder is not None and self._folder.has(self.file_key(key)):
            return self.restoring.block_ns + self.reading.block_ns
        if entry is not None and entry.is_there:
            return self.restoring.block_ns
        return None

    def costs(self, keys: Sequence[BlockKey]) -> list[float]:
        """Returns the nanoseconds of entries, from the first on as far as there are any."""
        found: list[float] = []
        for key in keys:
            cost = self.cost(key) if len(found) < self.slots.num_slots else None
            if cost is None:
                break
            found.append(cost)
        return found

    def hope(self) -> None:
        """Counts entries that were not brought back for the time that it takes."""
        self.restoring.hope()
        self.reading.hope()

    def hold(self, key: BlockKey, position: int) -> HostEntry | None:
        """Keeps an entry in its slot until it is released; takes a slot for one to be read.

        Returns:
            The entry; None if there is no slot for it now.
        """
        entry = self.slots.find(key)
        if entry is not None:
            entry.users += 1
            self.slots.use(key)
            return entry
        entry = self.slots.take(key, position, may_lose=False)
        if entry is not None:
            entry.is_written = True
        return entry

    def release(self, key: BlockKey, entry: HostEntry) -> None:
        """Takes back an entry that was held."""
        entry.users -= 1
        if not entry.is_there and not entry.users:
            self.slots.drop(key)
