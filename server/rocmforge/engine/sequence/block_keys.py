"""Names full blocks of the KV cache by what they hold.

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
    """Returns the key before the first block; each adapter has its own keys and values."""
    return ROOT if adapter == NO_ADAPTER else adapter.to_bytes(4, "little")


def chain_key(parent: BlockKey, tokens: Int32Array) -> BlockKey:
    """Returns the key of the block that holds `tokens`, [block_size], behind block `parent`."""
    return blake2b(parent + tokens.tobytes(), digest_size=16).digest()
