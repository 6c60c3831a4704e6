"""Blocks of the KV cache, and a state slot, for each sequence that is computed."""

from __future__ import annotations

from collections.abc import Iterable

from rocmforge.engine.cache.block_fetcher import BlockFetcher
from rocmforge.engine.cache.blocks import BlockAllocator
from rocmforge.engine.cache.recent_keys import RecentKeys
from rocmforge.engine.cache.state_keeper import StateKeeper
from rocmforge.engine.cache.tiers.tiers import Arrival, CacheTiers
from rocmforge.engine.cache.tiers.worth import ComputeNs
from rocmforge.engine.cache.window_blocks import WindowBlocks
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.sequence.sequence import Sequence


class BlockManager:
    """Gives blocks to sequences and takes them back; equal prefixes share theirs.

    With states, a prefix is shared up to a snapshot of the states at its end; with windows that
    release blocks, up to where the blocks are found that the next token sees.

    Args:
        num_blocks: of the cache.
        block_size: tokens of a block.
        keeps_prefixes: whether blocks are found again by what they hold.
        num_slots: state slots; 0 = the model has no states.
        num_snapshots: of those, that sequences leave to others.
        num_between: of those, for states between draft tokens.
        totals: counters to continue; those of states only.
        tiers: where blocks go that are given up; None = nowhere.
        window_groups: groups of layers that have a window and release blocks behind it.
        window: tokens, the largest of these.
        step_tokens: most tokens of a step, if there are such groups.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        keeps_prefixes: bool,
        num_slots: int = 0,
        num_snapshots: int = 0,
        num_between: int = 0,
        totals: Totals | None = None,
        tiers: CacheTiers | None = None,
        window_groups: int = 0,
        window: int = 0,
        step_tokens: int = 0,
    ) -> None:
        self._allocator = BlockAllocator(num_blocks, None if tiers is None else tiers.blocks)
        self._windows: WindowBlocks | None = None
        if window_groups:
            assert not num_slots, "states are of models without such groups"
            self._windows = WindowBlocks(
                self._allocator,
                block_size,
                window=window,
                groups=window_groups,
                step_tokens=step_tokens,
            )
        self._block_size = block_size
        self._keeps_prefixes = keeps_prefixes
        self._recent = RecentKeys()
        self._states: StateKeeper | None = None
        if num_slots:
            self._states = StateKeeper(
                num_slots,
                num_snapshots if keeps_prefixes else 0,
                num_between,
                block_size,
                self._allocator.holds,
                totals or Totals(),
                None if tiers is None else tiers.states,
            )
        self._fetcher = BlockFetcher(
            self._allocator, block_size, tiers, self._states, self._windows
        )

    @property
    def num_blocks(self) -> int:
        """All of them."""
        return self._allocator.num_blocks

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return self._allocator.num_used

    @property
    def num_cached(self) -> int:
        """Free blocks that still hold a reusable prefix."""
        return self._allocator.num_cached

    @property
    def _num_free(self) -> int:
        """Blocks that are free and for anybody."""
        return self._fetcher.num_free

    @property
    def num_slots(self) -> int:
        """All state slots."""
        return 0 if self._states is None else self._states.num_slots

    @property
    def num_slots_used(self) -> int:
        """Sequences that hold a state slot."""
        return 0 if self._states is None else self._states.num_used

    @property
    def num_snapshots(self) -> int:
        """Snapshots of states that can be found."""
        return 0 if self._states is None else self._states.num_snapshots

    def begin_step(self) -> None:
        """Learns that a step is to be scheduled; the one before is on its way to the device."""
        if self._states is not None:
            self._states.begin_step()
        if self._windows is not None:
            for seq in self._windows.take_passed():
                self.publish(seq)
                self._windows.slide(seq)

    def room(self, seq: Sequence) -> int:
        """Returns how many tokens fit into the blocks that the sequence holds."""
        return seq.num_blocks * self._block_size

    def place(self, seq: Sequence, end: int, *, reusable: int, reserve: int = 0) -> bool:
        """Gives a sequence without blocks room for `end` tokens: cached blocks, then fresh ones.

        It gets a state slot, too, if the model has states. What a snapshot is still to be made of
        in the step that is being scheduled, it has to wait for.

        Args:
            seq: what the found blocks hold counts as computed afterwards.
            end: at least one token.
            reusable: how many of its first tokens need not be computed, if they are found.
            reserve: blocks that have to stay free.
        """
        states, snapshot = self._states, None
        cached = self._find_prefix(seq, reusable)
        parting = len(cached) * self._block_size
        if states is not None:
            snapshot = states.find(seq, len(cached))
            if states.is_full or (snapshot is not None and states.is_coming(snapshot)):
                return False
            cached = cached[: 0 if snapshot is None else snapshot.end // self._block_size]
        of_windows = 0
        if self._windows is not None:
            cached = cached[: self._windows.reach(seq, len(cached))]
            of_windows = self._windows.blocks_for(seq)
        self._allocator.share(cached)
        fresh = -(-end // self._block_size) - len(cached)
        if self._num_free < fresh + of_windows + reserve:
            self._allocator.release(cached)
            return False
        if self._windows is not None:  # before what it has found is given away
            self._windows.begin(seq, len(cached), parting // self._block_size)
        seq.hold(*cached, *(self._allocator.allocate() for _ in range(fresh)))
        if states is not None:
            states.begin(seq, snapshot, parting)
        seq.num_published = len(cached)
        seq.num_computed = len(cached) * self._block_size
        return True

    def fetch(
        self, seq: Sequence, end: int, *, reusable: int, reserve: int, compute_ns: ComputeNs
    ) -> bool:
        """Has blocks brought back that a sequence without blocks could begin with.

        Args:
            seq: is to be placed.
            end: as for `place`.
            reusable: as for `place`.
            reserve: as for `place`.
            compute_ns: what it takes to compute them.

        Returns:
            Whether blocks of it are on their way: it should wait for them.
        """
        if not self._fetcher.has_tiers:
            return False
        cached = self._find_prefix(seq, reusable)
        return self._fetcher.fetch(
            seq, cached, end, reusable=reusable, reserve=reserve, compute_ns=compute_ns
        )

    def poll_tiers(self) -> None:
        """Takes in what tiers have done: what has come back can be found."""
        self._fetcher.poll()

    def start_copies(self) -> None:
        """Begins to save what the next step may overwrite, and to bring back what has a place."""
        self._fetcher.start()

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        """Blocks on their way back to the device."""
        return self._fetcher.arrivals

    def extend(self, seq: Sequence, end: int, *, reserve: int = 0) -> bool:
        """Makes room for `end` tokens; False if that leaves less than `reserve` blocks free."""
        missing = -(-end // self._block_size) - seq.num_blocks
        if missing > 0 and self._num_free < missing + reserve:
            return False
        for _ in range(missing):
            seq.hold(self._allocator.allocate())
        return True

    def cut(self, seq: Sequence, count: int) -> int:
        """Returns how many of the next `count` tokens a step takes, so that states can be kept."""
        return count if self._states is None else self._states.cut(seq, count)

    def is_cut(self, seq: Sequence) -> bool:
        """Returns whether a part of a prompt, just scheduled, ends only to leave a snapshot."""
        return self._states is not None and self._states.has_left_snapshot(seq)

    def advance(self, seq: Sequence) -> None:
        """Takes in that the step that is being scheduled computes a sequence up to its end."""
        if self._windows is not None:
            self._windows.advance(seq)
        self.publish(seq)
        if self._states is not None:
            self._states.advance(seq)

    def take_between(self, seq: Sequence, count: int) -> int:
        """Takes what `count` draft tokens of a sequence need of its own; returns for how many."""
        return count if self._states is None else self._states.take_between(seq, count)

    def settle(self, seq: Sequence, accepted: int) -> None:
        """Takes in how many draft tokens were accepted, and that the others are dropped."""
        if self._states is not None:
            self._states.settle(seq, accepted)

    def publish(self, seq: Sequence) -> None:
        """Offers blocks that are full of known tokens to whoever comes later."""
        if not self._keeps_prefixes:
            return
        full = min(seq.num_computed, seq.num_known) // self._block_size
        for i in range(seq.num_published, full):
            self._allocator.publish(int(seq.block_ids[i]), seq.block_key(i))
            if self._windows is not None:
                self._windows.publish(seq, i)
        seq.num_published = max(full, seq.num_published)

    def forget(self, seq: Sequence) -> None:
        """Takes what a sequence has computed out of the prefix index."""
        if self._windows is not None:
            self._windows.forget(seq, seq.num_published)
        for block in seq.blocks:
            self._allocator.forget(block)
        seq.num_published = seq.num_blocks  # nothing of it is worth keeping
        if self._states is not None:
            self._states.forget(seq)

    def release(self, seq: Sequence) -> None:
        """Takes back all that a sequence holds; what is in its blocks can be found still."""
        self.publish(seq)
        self._recent.keep(seq)
        self._allocator.release(seq.blocks)
        if self._windows is not None:
            self._windows.end(seq)
        if self._states is not None:
            self._states.end(seq)
        seq.drop_cache()

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Asserts that what these sequences hold explains every count."""
        holders = tuple(sequences)
        arriving = ([*each.held, *each.blocks.places] for each in self.arrivals)
        windows = () if self._windows is None else self._windows.check_integrity(holders)
        self._allocator.check_integrity((*(seq.blocks for seq in holders), *arriving, *windows))
        self._fetcher.check_integrity()
        if self._states is not None:
            self._states.check_integrity(holders, self.arrivals)

    def _find_prefix(self, seq: Sequence, reusable: int) -> list[int]:
        """Finds blocks that hold the beginning of the sequence, within `reusable` tokens."""
        if not self._keeps_prefixes:
            return []
        self._recent.recall(seq)
        count = reusable // self._block_size
        blocks = self._allocator.find_all(seq.keys[:count])
        if len(blocks) < len(seq.keys):
            return blocks
        for i in range(len(blocks), count):
            block = self._allocator.find(seq.block_key(i))
            if block is None:
                break
            blocks.append(block)
        return blocks
