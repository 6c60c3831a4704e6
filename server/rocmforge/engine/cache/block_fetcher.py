"""Brings blocks back from the tiers for a sequence that is to be placed.

What a sequence can begin behind depends on more than the blocks of its prefix: of a model with
states on a snapshot at the end of a block, of one whose windows release blocks on those that its
next token sees. These come back with the blocks, or nothing does.
"""

from __future__ import annotations

from functools import partial

from rocmforge.backend.step import NO_SLOT
from rocmforge.engine.cache.blocks import BlockAllocator
from rocmforge.engine.cache.state_keeper import StateKeeper
from rocmforge.engine.cache.tiers.tiers import Arrival, CacheTiers
from rocmforge.engine.cache.tiers.worth import ComputeNs, worth_restoring
from rocmforge.engine.cache.window_blocks import WindowBlocks
from rocmforge.engine.sequence.block_keys import BlockKey
from rocmforge.engine.sequence.sequence import Sequence


class BlockFetcher:
    """Decides what comes back, and gives it places.

    Args:
        allocator: of the device's blocks.
        block_size: tokens of a block.
        tiers: where blocks are; None = nowhere but on the device.
        states: those of a model that has some.
        windows: those of a model whose windows release blocks.
    """

    def __init__(
        self,
        allocator: BlockAllocator,
        block_size: int,
        tiers: CacheTiers | None,
        states: StateKeeper | None,
        windows: WindowBlocks | None,
    ) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._tiers = tiers
        self._states = states
        self._windows = windows

    @property
    def has_tiers(self) -> bool:
        """Whether blocks may be anywhere but on the device."""
        return self._tiers is not None

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        """Blocks on their way back to the device."""
        return () if self._tiers is None else tuple(self._tiers.arrivals)

    @property
    def num_free(self) -> int:
        """Blocks that are free and for anybody.

        What windows release while an arrival needs it is not free, and so not for others either.
        """
        if self._windows is None:
            return self._allocator.num_free
        held = (block for arrival in self.arrivals for block in arrival.held)
        withheld = self._windows.withheld + self._windows.count_held(held)
        return self._allocator.num_free - withheld

    def fetch(
        self,
        seq: Sequence,
        cached: list[int],
        end: int,
        *,
        reusable: int,
        reserve: int,
        compute_ns: ComputeNs,
    ) -> bool:
        """Has blocks brought back from tiers that a sequence without blocks could begin with.

        Args:
            seq: is to be placed.
            cached: blocks of its prefix that the device has.
            end: tokens that it needs room for.
            reusable: how many of its first tokens need not be computed.
            reserve: blocks that have to stay free.
            compute_ns: what it takes to compute them.

        Returns:
            Whether blocks of it are on their way: it should wait for them.
        """
        assert self._tiers is not None, "somebody has looked"
        size, states, windows, base = self._block_size, self._states, self._windows, None
        start, stop = len(cached), reusable // size
        if self._is_arriving(seq, start, stop):
            return True
        keys = [seq.block_key(i) for i in range(start, stop)]
        if windows is not None:
            first, goal = self._reach(seq, windows, keys, start, compute_ns)
        elif states is None:
            first, goal = start, start + self._tiers.worth_fetching(keys, start, compute_ns)
        else:
            base = states.find(seq, start)
            first = 0 if base is None else base.end // size
            costs = self._tiers.blocks.costs(keys)
            of_states = partial(self._state_cost, seq)
            goal = worth_restoring(first, start, size, costs, of_states, compute_ns)
        if goal == first:
            return False
        missing, held = -(-end // size) - min(start, goal), cached[:goal]
        if windows is not None:
            missing += windows.blocks_for(seq)
            found = map(self._allocator.find, windows.seen_keys(seq, goal))
            held = [*held, *(block for block in found if block is not None)]
        self._allocator.share(held)
        arrival = None
        of_windows = 0 if windows is None else windows.count_held(held)
        if self.num_free - of_windows >= missing + reserve:
            arrival = self._bring(seq, start, goal, gain=(goal - first) * size)
        if arrival is None:
            self._allocator.release(held)
            return False
        arrival.held, arrival.base = held, base
        arrival.blocks.places = [self._allocator.allocate() for _ in arrival.blocks.keys]
        return True

    def _reach(
        self,
        seq: Sequence,
        windows: WindowBlocks,
        keys: list[BlockKey],
        start: int,
        compute_ns: ComputeNs,
    ) -> tuple[int, int]:
        """Returns behind how many blocks a sequence can begin, and could with what is in tiers.

        The last such place alone is looked at: what is computed less saves more than it copies.

        Args:
            seq: is to be placed.
            windows: which release blocks.
            keys: of its prefix, from a block on.
            start: that block.
            compute_ns: what it takes to compute them.
        """
        assert self._tiers is not None, "somebody has looked"
        pool, size = self._tiers.blocks, self._block_size

        def is_somewhere(key: BlockKey) -> bool:
            return self._allocator.holds(key) or pool.cost(key) is not None

        costs = pool.costs(keys)
        first = windows.reach(seq, start)
        goal = windows.reach(seq, start + len(costs), is_somewhere)
        if goal <= first:
            return first, first
        seen = (key for key in windows.seen_keys(seq, goal) if not self._allocator.holds(key))
        spent = sum(costs[: max(0, goal - start)]) + sum(pool.cost(key) or 0.0 for key in seen)
        computing = compute_ns(first * size, (goal - first) * size)
        if computing is None or computing > spent:
            return first, goal
        pool.hope()
        return first, first

    def _bring(self, seq: Sequence, start: int, goal: int, *, gain: int) -> Arrival | None:
        """Begins to bring blocks back, up to one that has at its end what is needed there."""
        assert self._tiers is not None, "somebody has found them"
        keys = [seq.block_key(i) for i in range(start, goal)]
        position, target = min(start, goal), seq.block_key(goal - 1)
        if self._windows is not None:
            seen = self._windows.seen_keys(seq, goal)
            absent = [key for key in seen if not self._allocator.holds(key)]
            return self._tiers.fetch(keys, position, target, window_keys=absent)
        if self._states is None:
            return self._tiers.fetch(keys, position, target)
        snapshot = self._states.find_at(target)
        if snapshot is not None:
            arrival = self._tiers.fetch(keys, position, target)
            if arrival is not None:
                self._states.hold(snapshot)
                arrival.snapshot = snapshot
            return arrival
        slot = self._states.expect(gain)
        if slot == NO_SLOT:
            return None
        arrival = self._tiers.fetch(keys, position, target, with_states=True)
        if arrival is None:
            self._states.give_back(slot)
        elif arrival.states is not None:
            arrival.states.places = [slot]
        return arrival

    def _is_arriving(self, seq: Sequence, start: int, stop: int) -> bool:
        """Returns whether blocks behind the first ones come back, or what is needed behind some."""
        for arrival in self.arrivals:
            if start < stop and seq.block_key(start) in arrival.blocks.keys:
                return True
            end = arrival.positions.stop
            brings_more = arrival.states is not None or arrival.brings_windows
            if brings_more and end <= stop and seq.block_key(end - 1) == arrival.target:
                return True
        return False

    def _state_cost(self, seq: Sequence, end: int) -> float | None:
        """Returns what states at the end of a block take to come back; None: there are none."""
        assert self._states is not None, "a model with states"
        assert self._tiers is not None, "which could be in a tier"
        key = seq.block_key(end - 1)
        if self._states.find_at(key) is not None:
            return 0.0
        return None if self._tiers.states is None else self._tiers.states.cost(key)

    def poll(self) -> None:
        """Takes in what tiers have done: what has come back can be found."""
        for arrival in () if self._tiers is None else self._tiers.poll():
            blocks = arrival.blocks
            for block, key in zip(blocks.places[: blocks.num_valid], blocks.keys, strict=False):
                self._allocator.publish(block, key)
            if self._states is not None:
                self._states.take_arrival(arrival)
            self._allocator.release([*arrival.held, *blocks.places])

    def start(self) -> None:
        """Begins to save what the next step may overwrite, and to bring back what has a place."""
        if self._tiers is not None:
            self._tiers.start()

    def check_integrity(self) -> None:
        """Asserts that tiers are in order, and that windows find the blocks withheld for them."""
        if self._tiers is not None:
            self._tiers.check_integrity()
        assert self.num_free >= 0, "blocks are missing for windows"
