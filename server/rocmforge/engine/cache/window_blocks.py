"""Blocks of the layers that have a window: given when a step needs them, released behind it.

A sequence gets them for the tokens of a step when that step is scheduled. They are released when
the next one is scheduled, from which on no token sees them: the steps of a device run in order.
What is released can be found again until its block is needed, like any other.

That a running sequence finds blocks is settled before it begins: it has a quota, and the tokens of
a step have room beside all quotas. So many blocks are withheld from everybody else; they hold
prefixes until they are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np

from rocmforge.backend.windows import window_blocks
from rocmforge.engine.cache.blocks import BlockAllocator
from rocmforge.engine.sequence.block_keys import BlockKey
from rocmforge.engine.sequence.message_ends import message_ends
from rocmforge.engine.sequence.sequence import Sequence
from rocmforge.engine.sequence.windows import SequenceWindows


class WindowBlocks:
    """The blocks that sequences hold in each group of layers with a window.

    Args:
        allocator: hands out the blocks, which others get too.
        block_size: tokens of a block.
        window: tokens that a token sees at most, itself among them.
        groups: so many, at least one.
        step_tokens: most tokens of a step.
    """

    def __init__(
        self,
        allocator: BlockAllocator,
        block_size: int,
        *,
        window: int,
        groups: int,
        step_tokens: int,
    ) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._window = window
        self._groups = groups
        self._step_blocks = step_tokens // block_size
        self._quotas = 0  # of all running sequences, in one group
        self._held: Counter[int] = Counter()  # blocks, and how many sequences hold each
        self._computed: list[Sequence] = []  # in the step that is being scheduled

    @property
    def withheld(self) -> int:
        """Free blocks that are for running sequences."""
        return self._groups * (self._quotas + self._step_blocks) - len(self._held)

    def count_held(self, blocks: Iterable[int]) -> int:
        """Returns how many of some blocks running sequences hold in these groups."""
        return len(self._held.keys() & set(blocks))

    def quota(self, seq: Sequence) -> int:
        """Returns the blocks of each group that a sequence may hold between steps."""
        whole = -(-seq.compute_limit // self._block_size)
        return min(window_blocks(self._window, self._block_size), whole)

    def blocks_for(self, seq: Sequence) -> int:
        """Returns the blocks that are withheld for a sequence that begins."""
        return self._groups * self.quota(seq)

    def first_seen(self, position: int) -> int:
        """Returns the first block that the token at a position sees."""
        return max(0, position - self._window + 1) // self._block_size

    def reach(
        self, seq: Sequence, count: int, holds: Callable[[BlockKey], bool] | None = None
    ) -> int:
        """Returns behind how many of its first `count` blocks the sequence could begin.

        Args:
            seq: holds none.
            count: blocks that there are in the layers without a window.
            holds: whether there is a block with that content; None = whether the device has it.
        """
        holds = holds or self._allocator.holds
        end = block = count
        while block > self.first_seen(end * self._block_size):
            block -= 1
            if not all(map(holds, self._keys(seq, block))):
                end = block
        return end

    def seen_keys(self, seq: Sequence, end: int) -> list[BlockKey]:
        """Returns the keys of all blocks that a sequence needs that begins behind `end` blocks."""
        first = self.first_seen(end * self._block_size)
        return [key for block in range(first, end) for key in self._keys(seq, block)]

    def _find(self, seq: Sequence, block: int) -> list[int] | None:
        """Returns the blocks of all groups with the content of that of the sequence, if found."""
        found = [self._allocator.find(key) for key in self._keys(seq, block)]
        blocks = [each for each in found if each is not None]
        return blocks if len(blocks) == len(found) else None

    def _keys(self, seq: Sequence, block: int) -> list[BlockKey]:
        key = seq.block_key(block)
        return [key + bytes([group]) for group in range(self._groups)]

    def begin(self, seq: Sequence, start: int, parting: int) -> None:
        """Has a sequence begin behind `start` blocks, which `reach` has allowed.

        Args:
            seq: holds none.
            start: blocks.
            parting: blocks of its prefix that were found in the layers without a window.
        """
        shape = self._groups, len(seq.block_ids)
        quota = self.quota(seq)
        windows = seq.windows = SequenceWindows(
            np.zeros(shape, np.int32), quota, self._worth(seq, parting)
        )
        self._quotas += quota
        windows.first = self.first_seen(start * self._block_size)
        windows.stop = start
        for block in range(windows.first, start):
            blocks = self._find(seq, block)
            assert blocks is not None, "somebody has looked for it before"
            self._allocator.share(blocks)
            self._held.update(blocks)
            windows.tables[:, block] = blocks

    def _worth(self, seq: Sequence, parting: int) -> frozenset[int]:
        """Returns the blocks that a sequence needs that begins where this one is likely to part."""
        ends = message_ends(seq) // self._block_size
        points = {parting, int(ends[0]), int(ends[-1])}
        ranges = [range(self.first_seen(end * self._block_size), end) for end in points]
        return frozenset().union(*ranges)

    def advance(self, seq: Sequence) -> None:
        """Gives a sequence blocks for what it computes in the step that is being scheduled."""
        windows = seq.windows
        assert windows is not None, "it runs"
        self._computed.append(seq)
        end = -(-seq.num_computed // self._block_size)
        for block in range(windows.stop, end):
            blocks = [self._allocator.allocate() for _ in range(self._groups)]
            self._held.update(blocks)
            windows.tables[:, block] = blocks
        windows.stop = max(windows.stop, end)

    def take_passed(self) -> list[Sequence]:
        """Returns, once, what runs of the step before and has left a block behind."""
        computed, self._computed = self._computed, []
        return [
            seq
            for seq in computed
            if seq.windows is not None and self._first_needed(seq) > seq.windows.first
        ]

    def _first_needed(self, seq: Sequence) -> int:
        """Returns the first block that is seen by what the sequence computes from now on.

        Draft tokens in flight may be taken back, but none of the known ones.
        """
        return self.first_seen(min(seq.num_computed, seq.num_known))

    def slide(self, seq: Sequence) -> None:
        """Releases what no token will see that the sequence computes from now on."""
        windows = seq.windows
        assert windows is not None, "it runs"
        first = self._first_needed(seq)
        for block in range(windows.first, first):
            self._release(windows, block, first_to_go=block not in windows.worth)
        windows.tables[:, windows.first : first] = 0
        windows.first = max(first, windows.first)

    def publish(self, seq: Sequence, block: int) -> None:
        """Offers the blocks at a place of a sequence to whoever comes later."""
        assert seq.windows is not None, "it runs"
        assert block >= seq.windows.first, "a block was released before it was published"
        blocks = seq.windows.tables[:, block].tolist()
        for each, key in zip(blocks, self._keys(seq, block), strict=True):
            self._allocator.publish(each, key)

    def forget(self, seq: Sequence, count: int) -> None:
        """Takes the first blocks of a sequence out of the prefix index, and all that it holds."""
        assert seq.windows is not None, "it runs"
        for block in range(count):
            for each in self._find(seq, block) or ():
                self._allocator.forget(each)
        for each in seq.windows.held:
            self._allocator.forget(each)

    def end(self, seq: Sequence) -> None:
        """Takes back what a sequence holds."""
        windows = seq.windows
        if windows is None:
            return
        self._quotas -= windows.quota
        for block in reversed(range(windows.first, windows.stop)):
            self._release(windows, block, first_to_go=False)
        seq.windows = None

    def _release(self, windows: SequenceWindows, block: int, *, first_to_go: bool) -> None:
        blocks: list[int] = windows.tables[:, block].tolist()
        for each in blocks:
            self._held[each] -= 1
            if not self._held[each]:
                del self._held[each]
        self._allocator.release(blocks, first_to_go=first_to_go, position=block)

    def check_integrity(self, holders: Iterable[Sequence]) -> list[list[int]]:
        """Asserts that sequences hold what they see, and no more than they may.

        Returns:
            The blocks of each.
        """
        all_windows = []
        for seq in holders:
            windows = seq.windows
            assert windows is not None, "a running sequence has no windows"
            all_windows.append(windows)
            assert windows.first <= self._first_needed(seq), "a block was released that is seen"
            assert windows.stop * self._block_size >= seq.num_computed, "tokens without a block"
            most = windows.quota + self._step_blocks + 1
            assert windows.stop - windows.first <= most, "more blocks than a window needs"
        assert self._quotas == sum(each.quota for each in all_windows), "a quota is lost"
        tables = [each.held for each in all_windows]
        assert self._held == Counter(chain.from_iterable(tables)), "a window's block is lost"
        return tables
