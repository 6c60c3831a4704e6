"""Who reads and writes which state slot, and where snapshots are taken.

A sequence has a slot that it writes. If it reaches the end of a block, the states there are its
tail: it goes on in another slot, and leaves the tail as it is until the end of the next block.
Nothing is copied. A tail becomes a snapshot

- at the end of the first message of a prompt, which is the system's, and of its last one,
- at the end of a message after at most so many tokens, or without a message after so many,
- where the prompt parts from another one whose blocks were found, but no snapshot: the third one
  that begins alike finds it,
- when the sequence ends or is preempted.

A prompt is cut there, but a step may have several of its parts: each goes on from the snapshot that
the one before it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final

from rocmforge.backend.step import NO_SLOT
from rocmforge.engine.cache.blocks import Watcher
from rocmforge.engine.cache.snapshots import Snapshots
from rocmforge.engine.cache.state_slots import StateSlots
from rocmforge.engine.cache.tiers.tiers import Arrival
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.sequence.block_keys import BlockKey
from rocmforge.engine.sequence.message_ends import message_ends
from rocmforge.engine.sequence.sequence import Sequence
from rocmforge.engine.sequence.states import SequenceStates, Snapshot, last_kept

INTERVAL: Final = 2048
"""Tokens of a prompt after which a snapshot is taken."""


class StateKeeper:
    """The state slots of a model, those of sequences and those of snapshots.

    Args:
        num_slots: all of them.
        num_snapshots: of those, for snapshots and tails; 0 = nothing is kept.
        num_between: of those, for states between draft tokens.
        block_size: tokens of a block.
        is_findable: whether the block with that key is in the cache.
        totals: counters to continue.
        watcher: is told what becomes of snapshots.
    """

    def __init__(
        self,
        num_slots: int,
        num_snapshots: int,
        num_between: int,
        block_size: int,
        is_findable: Callable[[BlockKey], bool],
        totals: Totals,
        watcher: Watcher | None = None,
    ) -> None:
        self._block_size = block_size
        self._slots = StateSlots(num_slots)
        self._snapshots = Snapshots(
            self._slots, num_snapshots, is_findable, totals, block_size, watcher
        )
        self._num_running = 0
        self._num_between = num_between  # that are free

    @property
    def num_slots(self) -> int:
        """All slots."""
        return self._slots.num_slots

    @property
    def num_used(self) -> int:
        """Sequences that hold a slot."""
        return self._num_running

    @property
    def num_snapshots(self) -> int:
        """Snapshots that can be found."""
        return self._snapshots.num_kept

    @property
    def is_full(self) -> bool:
        """Whether no sequence can begin."""
        return self._slots.is_full

    def begin_step(self) -> None:
        """Learns that the step before is on its way to the device."""
        self._snapshots.begin_step()

    def find(self, seq: Sequence, num_blocks: int) -> Snapshot | None:
        """Returns the last snapshot within the first blocks of a sequence."""
        if not self._snapshots.most:
            return None
        for i in reversed(range(num_blocks)):
            snapshot = self._snapshots.find(seq.block_key(i))
            if snapshot is not None:
                return snapshot
        return None

    def is_coming(self, snapshot: Snapshot) -> bool:
        """Returns whether the step that is being scheduled makes it, so that it cannot read it."""
        return self._snapshots.is_coming(snapshot)

    def begin(self, seq: Sequence, snapshot: Snapshot | None, parting: int) -> None:
        """Gives a sequence a slot.

        Args:
            seq: holds none.
            snapshot: what it goes on from.
            parting: the end of the blocks that were found, with or without a snapshot.
        """
        self._snapshots.begin_from(snapshot)
        self._num_running += 1
        slot = self._slots.take()
        states = seq.states = SequenceStates(read=slot, write=slot)
        if snapshot is not None:
            states.read, states.source, states.base = snapshot.slot, snapshot, snapshot
        if self._snapshots.most:
            start = 0 if snapshot is None else snapshot.end
            states.points = frozenset({*self._points(seq, start), parting})

    def cut(self, seq: Sequence, count: int) -> int:
        """Returns how many of the next `count` tokens to compute in one step.

        They end at the next point whose snapshot is worth a slot, or at the end of a block if that
        is possible.
        """
        states = seq.states
        if states is None or not self._snapshots.most or count <= 0:
            return count
        start, end = seq.num_computed, seq.num_computed + count
        for point in sorted(states.points):
            if start < point <= end and self._may_leave(states, point):
                return point - start
        whole = end - end % self._block_size
        return whole - start if count < seq.num_new and whole > start else count

    def _may_leave(self, states: SequenceStates, end: int) -> bool:
        """Returns whether there is a slot for the states at the end of a block."""
        return states.tail != NO_SLOT or self._snapshots.has_room(self._gain(states, end))

    @staticmethod
    def _gain(states: SequenceStates, end: int) -> int:
        """Returns the tokens that a snapshot there would save."""
        states.base = last_kept(states.base)
        return end - (0 if states.base is None else states.base.end)

    def advance(self, seq: Sequence) -> None:
        """Takes in that the step that is being scheduled computes a sequence up to its end."""
        states = seq.states
        if states is None:
            return
        if states.source is not None:
            self._snapshots.read(states.source)
            states.source = None
        states.read = states.write
        if not states.between:
            self._leave_tail(seq, states)

    @staticmethod
    def has_left_snapshot(seq: Sequence) -> bool:
        """Returns whether a sequence goes on from a snapshot that the scheduled step makes."""
        return seq.states is not None and seq.states.source is not None

    def take_between(self, seq: Sequence, count: int) -> int:
        """Takes slots for the states between draft tokens; returns for how many of `count`."""
        if seq.states is None:
            return count
        count = min(count, self._num_between)
        self._num_between -= count
        seq.states.between = tuple(self._slots.take() for _ in range(count))
        return count

    def settle(self, seq: Sequence, accepted: int) -> None:
        """Has a sequence go on with the states after so many of its draft tokens."""
        states = seq.states
        if states is None or not states.between:
            return
        slots = [*states.between, states.write]
        states.read = states.write = slots.pop(accepted)
        self._release_between(slots)
        states.between = ()
        self._leave_tail(seq, states)

    def _release_between(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._slots.release(slot)
            self._num_between += 1

    def _leave_tail(self, seq: Sequence, states: SequenceStates) -> None:
        """Leaves the states at the end of a block, if a sequence is there; it goes on in others."""
        if seq.num_computed % self._block_size or not self._snapshots.most:
            return
        if states.tail == NO_SLOT:
            states.tail = self._snapshots.take_tail(self._gain(states, seq.num_computed))
        if states.tail == NO_SLOT:
            return
        # The step before may still read the tail: steps run in order.
        states.tail, states.write = states.write, states.tail
        states.tail_end = seq.num_computed
        if states.tail_end in states.points:
            self._keep_tail(seq, states, is_coming=True)

    def _keep_tail(self, seq: Sequence, states: SequenceStates, *, is_coming: bool) -> None:
        key = seq.block_key(states.tail_end // self._block_size - 1)
        snapshot = self._snapshots.keep(
            key, states.tail_end, states.tail, states.base, is_coming=is_coming
        )
        if snapshot is None:
            states.base = self._snapshots.find(key)
            return
        if states.read == states.tail:
            self._snapshots.hold(snapshot)
            states.source = snapshot
        states.tail, states.base = NO_SLOT, snapshot

    def forget(self, seq: Sequence) -> None:
        """Gives up all snapshots of a sequence, whose states are not to be trusted."""
        states = seq.states
        if states is None:
            return
        states.is_trusted = False
        full = min(seq.num_computed, seq.num_known) // self._block_size
        for i in range(full if self._snapshots.most else 0):
            snapshot = self._snapshots.find(seq.block_key(i))
            if snapshot is not None:
                self._snapshots.forget(snapshot)

    def end(self, seq: Sequence) -> None:
        """Takes back the slots of a sequence; its tail becomes a snapshot."""
        states = seq.states
        if states is None:
            return
        if states.tail != NO_SLOT and states.is_trusted and states.tail_end <= seq.num_known:
            self._keep_tail(seq, states, is_coming=False)
        if states.tail != NO_SLOT:
            self._snapshots.give_back(states.tail)
        self._snapshots.rest(states.base)
        if states.source is not None:
            self._snapshots.release(states.source)
        self._slots.release(states.write)
        self._release_between(states.between)
        self._num_running -= 1
        seq.states = None

    def find_at(self, key: BlockKey) -> Snapshot | None:
        """Returns the snapshot at the end of the block with that key."""
        return self._snapshots.find(key) if self._snapshots.most else None

    def expect(self, gain: int) -> int:
        """Takes a slot for a snapshot that comes back and saves so many tokens; perhaps NO_SLOT."""
        return self._snapshots.take_tail(gain) if self._snapshots.most else NO_SLOT

    def give_back(self, slot: int) -> None:
        """Takes back a slot that was taken in vain."""
        self._snapshots.give_back(slot)

    def hold(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot that blocks are coming back for, until `take_arrival`."""
        self._snapshots.hold(snapshot)

    def take_arrival(self, arrival: Arrival) -> None:
        """Takes in that an arrival is over: the states that it has brought can be found."""
        if arrival.snapshot is not None:
            self._snapshots.release(arrival.snapshot)
        slot, is_kept = arrival.state_slot, False
        if arrival.brings_states:
            end = arrival.positions.stop * self._block_size
            key, base = arrival.target, last_kept(arrival.base)
            found = self._snapshots.keep(key, end, slot, base, is_coming=False, is_new=False)
            is_kept = found is not None
        if slot != NO_SLOT and not is_kept:
            self._snapshots.give_back(slot)

    def _points(self, seq: Sequence, start: int) -> set[int]:
        """Returns where snapshots of a prompt are taken that goes on from a token."""
        ends = message_ends(seq) // self._block_size * self._block_size
        points = {int(end) for end in (ends[0], ends[-1]) if end > start}
        for begin, stop in pairwise((start, *sorted(points))):
            previous = begin
            while stop - previous > INTERVAL:
                near = ends[(ends > previous) & (ends <= previous + INTERVAL)]
                previous = int(near[-1]) if len(near) else previous + INTERVAL
                points.add(previous)
        return points

    def check_integrity(self, holders: tuple[Sequence, ...], arrivals: Iterable[Arrival]) -> None:
        """Asserts that running sequences, snapshots and what comes back explain every slot."""
        all_states = [seq.states for seq in holders if seq.states is not None]
        assert len(all_states) == (len(holders) if self._slots.num_slots else 0)
        assert len(all_states) == self._num_running, "a sequence has ended with its slot"
        tails = [each.tail for each in all_states if each.tail != NO_SLOT]
        sources = [each.source for each in all_states if each.source is not None]
        for arrival in arrivals:
            tails += [arrival.state_slot] if arrival.states is not None else []
            sources += [arrival.snapshot] if arrival.snapshot is not None else []
        for states in all_states:
            others = states.write, states.tail, getattr(states.source, "slot", NO_SLOT)
            assert states.read in others, f"nobody keeps slot {states.read}, which is to be read"
        kept = self._snapshots.check_integrity(tails, sources)
        between = [slot for each in all_states for slot in each.between]
        self._slots.check_integrity([*(each.write for each in all_states), *tails, *kept, *between])
