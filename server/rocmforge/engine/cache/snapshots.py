"""Snapshots: states that outlive their sequence, found again by the tokens they have taken in.

There is room for some. When it is used up, the one that is worth least goes: the tokens that would
have to be computed without it, from the snapshot before it on, by how long it has been of no use.
One in the middle of a conversation is worth less, as few go back there. So a long conversation
keeps many snapshots near its end and few near its beginning: with each that goes, the next one is
worth more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from rocmforge.backend.step import NO_SLOT
from rocmforge.engine.cache.blocks import Watcher
from rocmforge.engine.cache.state_slots import StateSlots
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.sequence.block_keys import BlockKey
from rocmforge.engine.sequence.states import Snapshot, last_kept

_IN_THE_MIDDLE: Final = 0.5  # of what it would be worth at the end


class Snapshots:
    """The snapshots that there are, and how many slots may be used for them.

    What a step makes is found by those that are scheduled after it: its states are not there before
    it has run, and a step may read no slot that it writes.

    Args:
        slots: where they are.
        most: slots that they may take, and the tails of sequences.
        is_findable: whether the block with that key is in the cache.
        totals: counters to continue.
        block_size: tokens of a block.
        watcher: is told what becomes of their slots.
    """

    def __init__(
        self,
        slots: StateSlots,
        most: int,
        is_findable: Callable[[BlockKey], bool],
        totals: Totals,
        block_size: int = 1,
        watcher: Watcher | None = None,
    ) -> None:
        self.most = most
        self._block_size = block_size
        self._watcher = watcher
        self._slots = slots
        self._is_findable = is_findable
        self._totals = totals
        self._found: dict[BlockKey, Snapshot] = {}
        self._dropped: set[Snapshot] = set()  # but still read
        self._coming: set[Snapshot] = set()  # made by the step that is being scheduled
        self._read_now: list[Snapshot] = []  # by that step
        self._num_tails = 0
        self._now = 0

    @property
    def num_kept(self) -> int:
        """Snapshots that can be found."""
        return len(self._found)

    def begin_step(self) -> None:
        """Learns that the step before is on its way to the device, which takes steps in order."""
        self._coming.clear()
        for snapshot in self._read_now:
            self.release(snapshot)
        self._read_now.clear()

    def find(self, key: BlockKey) -> Snapshot | None:
        """Returns the snapshot at the end of the block with that key."""
        return self._found.get(key)

    def is_coming(self, snapshot: Snapshot) -> bool:
        """Returns whether the step that is being scheduled makes it."""
        return snapshot in self._coming

    def begin_from(self, snapshot: Snapshot | None) -> None:
        """Counts a sequence that begins, and goes on from a snapshot if it has found one."""
        self._now += 1
        if snapshot is not None:
            self.hold(snapshot)
            snapshot.used = self._now

    def hold(self, snapshot: Snapshot) -> None:
        """Keeps its slot as it is until `release`."""
        snapshot.readers += 1

    def read(self, snapshot: Snapshot) -> None:
        """Hands what was held to the step that is being scheduled, which reads it."""
        self._read_now.append(snapshot)

    def release(self, snapshot: Snapshot) -> None:
        """Gives up what was held."""
        snapshot.readers -= 1
        if not snapshot.readers and snapshot in self._dropped:
            self._dropped.remove(snapshot)
            self._slots.release(snapshot.slot)

    def has_room(self, gain: int) -> bool:
        """Returns whether `take_tail` would find a slot."""
        return not self._is_full or self._worst_below(gain) is not None

    def take_tail(self, gain: int) -> int:
        """Returns a slot for states that would save `gain` tokens; NO_SLOT if none is free for it.

        It is a tail until `keep` or `give_back`.
        """
        if self._is_full:
            worst = self._worst_below(gain)
            if worst is None:
                return NO_SLOT
            self._let_go(worst)
            self._totals.state_snapshots_evicted += 1
        self._num_tails += 1
        return self._slots.take()

    @property
    def _is_full(self) -> bool:
        return len(self._found) + len(self._dropped) + self._num_tails >= self.most

    def give_back(self, slot: int) -> None:
        """Takes back the slot of a tail."""
        self._num_tails -= 1
        self._slots.release(slot)

    def keep(
        self,
        key: BlockKey,
        end: int,
        slot: int,
        parent: Snapshot | None,
        *,
        is_coming: bool,
        is_new: bool = True,
    ) -> Snapshot | None:
        """Makes a snapshot of a tail, whose slot it takes; None if there is one with that key.

        Args:
            key: of the block at whose end it is.
            end: tokens that the states have taken in.
            slot: of the tail.
            parent: see `Snapshot`.
            is_coming: whether the step that is being scheduled writes it.
            is_new: whether it has been computed, rather than brought back.
        """
        if key in self._found:
            self._found[key].used = self._now
            return None
        snapshot = Snapshot(key, end, slot, parent, self._now, has_rested=not is_new)
        self._found[key] = snapshot
        if is_coming:
            self._coming.add(snapshot)
        self._num_tails -= 1
        self._totals.state_snapshots_taken += is_new
        return snapshot

    def rest(self, snapshot: Snapshot | None) -> None:
        """Learns that the sequence has ended whose last snapshot this is: it may be saved.

        So may those before it that have come since the one that the sequence went on from. The last
        one is said last, as it is worth most.
        """
        news, snapshot = list[Snapshot](), last_kept(snapshot)
        while snapshot is not None:
            news.append(snapshot)
            snapshot = None if snapshot.has_rested else last_kept(snapshot.parent)
        for each in reversed(news):
            self._say_rests(each)

    def _say_rests(self, snapshot: Snapshot) -> None:
        snapshot.has_rested = True
        if self._watcher is not None:
            place = snapshot.end // self._block_size
            self._watcher.rests(snapshot.slot, snapshot.key, place)

    def _let_go(self, snapshot: Snapshot) -> None:
        """Gives a snapshot up for want of room; it may have been lost where it was saved."""
        if snapshot.has_rested:
            self._say_rests(snapshot)
        if self._watcher is not None:
            self._watcher.leaves(snapshot.slot)
        self._drop(snapshot)

    def forget(self, snapshot: Snapshot) -> None:
        """Gives a snapshot up that is not to be trusted."""
        if self._watcher is not None:
            self._watcher.forgets(snapshot.slot)
        self._drop(snapshot)

    def _drop(self, snapshot: Snapshot) -> None:
        """Gives a snapshot up; its slot is free as soon as nobody reads it."""
        del self._found[snapshot.key]
        snapshot.is_kept = False
        self._coming.discard(snapshot)
        if snapshot.readers:
            self._dropped.add(snapshot)
        else:
            self._slots.release(snapshot.slot)

    def _worst_below(self, gain: int) -> Snapshot | None:
        """Returns the snapshot that is worth least, and less than `gain` tokens.

        Those that somebody is about to read are not asked about.
        """
        children = Counter(last_kept(each.parent) for each in self._found.values())
        least, worst = float(gain), None
        for snapshot in self._found.values():
            if snapshot.readers or snapshot in self._coming:
                continue
            worth = self._worth(snapshot)
            if children[snapshot] == 1:
                worth *= _IN_THE_MIDDLE
            if worth < least:
                least, worst = worth, snapshot
        return worst

    def _worth(self, snapshot: Snapshot) -> float:
        """Returns the tokens that it saves, by its age; one without its block is of no use now."""
        if not self._is_findable(snapshot.key):
            return 0.0
        return (snapshot.end - snapshot.start) / (1 + self._now - snapshot.used)

    def check_integrity(self, tails: list[int], sources: Iterable[Snapshot]) -> list[int]:
        """Asserts that tails and readers of running sequences explain what is held.

        Returns:
            The slots of all snapshots.
        """
        kept = set(self._found.values())
        assert all(key == snapshot.key for key, snapshot in self._found.items())
        assert all(each.is_kept for each in kept), "a snapshot that was given up is found"
        assert self._coming <= kept, "a snapshot that is coming cannot be found"
        assert all(each.readers for each in self._dropped), "a snapshot is lost"
        assert len(tails) == self._num_tails, f"{len(tails)} tails, not {self._num_tails}"
        taken = len(kept) + len(self._dropped) + len(tails)
        assert taken <= self.most, f"{taken} snapshots and tails, of {self.most}"
        held = [*sources, *self._read_now]
        for snapshot in kept | self._dropped | set(held):
            expected = sum(each is snapshot for each in held)
            assert snapshot.readers == expected, f"{snapshot.readers} readers, not {expected}"
            assert snapshot.start < snapshot.end, "a snapshot that saves nothing"
        return [each.slot for each in (*kept, *self._dropped)]
