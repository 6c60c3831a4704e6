"""Hands out the blocks of the KV cache and keeps count of who uses them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain, compress
from typing import Protocol

from rocmforge.engine.cache.prefix_index import PrefixIndex
from rocmforge.engine.sequence.block_keys import BlockKey


class Watcher(Protocol):
    """Learns what becomes of blocks whose content can be found."""

    def rests(self, block: int, key: BlockKey, position: int) -> None:
        """Nobody refers to the block any more, which was at that place of a sequence."""
        ...

    def leaves(self, block: int) -> None:
        """A free block is handed out, and its content lost."""
        ...

    def forgets(self, block: int) -> None:
        """The content of a block is not to be found any more."""
        ...


class BlockAllocator:
    """Reference counts over `num_blocks` blocks, and the prefixes that free blocks still hold.

    A block is in exactly one place: used (count above zero), empty (free, content worthless) or
    cached (free, content in the prefix index). Empty blocks are handed out first, then the
    cached one that was released longest ago.

    Args:
        num_blocks: of the cache.
        watcher: is told what becomes of blocks.
    """

    def __init__(self, num_blocks: int, watcher: Watcher | None = None) -> None:
        self.num_blocks = num_blocks
        self._watcher = watcher
        self._index = PrefixIndex()
        self._counts = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return len(self._empty) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks that someone refers to."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Free blocks that still hold a reusable prefix."""
        return len(self._cached)

    def allocate(self) -> int:
        """Takes one block, with a count of one. The caller has checked `num_free`."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._index.discard(block)
            if self._watcher is not None:
                self._watcher.leaves(block)
        self._counts[block] = 1
        return block

    def find(self, key: BlockKey) -> int | None:
        """Finds the block that holds a prefix; it stays as it is until `share` takes it."""
        return self._index.find(key)

    def find_all(self, keys: Sequence[BlockKey]) -> list[int]:
        """Finds the blocks of the first keys, up to one that there is no block of."""
        return self._index.find_all(keys)

    def holds(self, key: BlockKey) -> bool:
        """Returns whether a block with that content can be found."""
        return self._index.find(key) is not None

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to blocks that were found."""
        counts = self._counts
        for block in blocks:
            if counts[block] == 0:
                del self._cached[block]
            counts[block] += 1

    def publish(self, block: int, key: BlockKey) -> None:
        """Makes a full block findable by its content."""
        self._index.add(key, block)

    def forget(self, block: int) -> None:
        """Takes a block out of the prefix index."""
        self._index.discard(block)
        if block in self._cached:
            del self._cached[block]
            self._empty.append(block)
        if self._watcher is not None:
            self._watcher.forgets(block)

    def release(
        self, blocks: Sequence[int], *, first_to_go: bool = False, position: int = 0
    ) -> None:
        """Drops one reference to each block of a sequence, given in order of position.

        The last ones become the oldest of the cache: a prefix loses its tail first.

        Args:
            blocks: of a sequence.
            first_to_go: whether they are worth less than all that is cached, and nowhere else.
            position: of the first of them.
        """
        for place, block in reversed(tuple(enumerate(blocks, position))):
            self._counts[block] -= 1
            if self._counts[block] > 0:
                continue
            key = self._index.key_of(block)
            if key is not None:
                self._cached[block] = None
                self._cached.move_to_end(block, last=not first_to_go)
                if self._watcher is not None and not first_to_go:
                    self._watcher.rests(block, key, place)
            else:
                self._empty.append(block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Asserts that `tables`, the blocks of every live sequence, explain every count."""
        self._index.check_integrity()
        references = Counter(chain.from_iterable(tables))
        used = set(compress(range(self.num_blocks), self._counts))
        for block in used | references.keys():
            count = self._counts[block]
            assert count == references[block], f"block {block}: {count} != {references[block]}"
        empty = set(self._empty)
        cached = set(self._cached)
        assert len(used) + len(self._empty) + len(cached) == self.num_blocks, "a block is lost"
        assert used | empty | cached == set(range(self.num_blocks)), "a block is in two places"
        assert cached <= self._index.blocks, "a cached block has no content"
        assert self._index.blocks.isdisjoint(empty), "an empty block has content"
