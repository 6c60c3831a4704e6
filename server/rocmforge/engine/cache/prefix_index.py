"""Finds blocks by what they hold, so that equal prefixes are computed once."""

from __future__ import annotations

from collections.abc import Sequence, Set

from rocmforge.engine.sequence.block_keys import BlockKey


class PrefixIndex:
    """A one-to-one map between keys and the blocks that hold their content."""

    def __init__(self) -> None:
        self._block_of: dict[BlockKey, int] = {}
        self._key_of: dict[int, BlockKey] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    @property
    def blocks(self) -> Set[int]:
        """The blocks whose content is known."""
        return self._key_of.keys()

    def find(self, key: BlockKey) -> int | None:
        """Returns the block with that content, if any."""
        return self._block_of.get(key)

    def find_all(self, keys: Sequence[BlockKey]) -> list[int]:
        """Returns the blocks with the contents of the first keys, up to one that has none."""
        blocks = list(map(self._block_of.get, keys))
        end = blocks.index(None) if None in blocks else len(blocks)
        return [block for block in blocks[:end] if block is not None]

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    def key_of(self, block: int) -> BlockKey | None:
        """Returns what a block is known by, if its content is known."""
        return self._key_of.get(block)

    def add(self, key: BlockKey, block: int) -> None:
        """Records the content of a block, unless that content or that block is known already."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def discard(self, block: int) -> None:
        """Forgets a block whose content is about to change, or is not to be trusted."""
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]

    def check_integrity(self) -> None:
        """Asserts that both directions agree."""
        assert {block: key for key, block in self._block_of.items()} == self._key_of
