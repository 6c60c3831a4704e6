"""Finds blocks by what they hold, so that equal prefixes are computed once.

A full block is known by a key that covers its own tokens and, through the key of the block
before it, everything that precedes it. Keys are 128 bits of BLAKE2b: two different prefixes
with one key are not expected within the life of any server, so tokens are not compared again.
"""

from __future__ import annotations

from hashlib import blake2b

from rocmforge.backend.protocol import NO_ADAPTER, Int32Array

BlockKey = bytes
ROOT: BlockKey = b""
"""What stands for the key before the first block."""


def root_key(adapter: int) -> BlockKey:
    """The same for a sequence with an adapter: equal tokens have other keys and values under it."""
    return ROOT if adapter == NO_ADAPTER else adapter.to_bytes(4, "little")


def chain_key(parent: BlockKey, tokens: Int32Array) -> BlockKey:
    """Key of the block that holds `tokens` and follows the block with key `parent`."""
    return blake2b(parent + tokens.tobytes(), digest_size=16).digest()


class PrefixIndex:
    """A one-to-one map between keys and the blocks that hold their content."""

    def __init__(self) -> None:
        self._block_of: dict[BlockKey, int] = {}
        self._key_of: dict[int, BlockKey] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    def find(self, key: BlockKey) -> int | None:
        """The block with that content, if any."""
        return self._block_of.get(key)

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
