"""Names full blocks of the KV cache by what they hold.

A full block is known by a key that covers its own tokens and, through the key of the block
before it, everything that precedes it. Where rows of embeddings stand in the place of tokens, the
key covers which rows they are, too: their placeholders are alike. Keys are 128 bits of BLAKE2b: two
different prefixes with one key are not expected within the life of any server, so tokens are not
compared again.

The root of the chain holds whatever else decides who may find a block: the LoRA adapter, whose
keys and values are its own, and the API key and `cache_salt` of the request. Otherwise a caller
could guess what others have sent: `cached_tokens`, or the time, tells whether a prefix was found.
What stands for the API key is made from it: only who has it can compute the keys of its blocks.
"""

from __future__ import annotations

from hashlib import blake2b

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import NO_ADAPTER
from rocmforge.engine.ipc.params import NO_KEY, Share

BlockKey = bytes
ROOT: BlockKey = b""
"""What stands for the key before the first block."""


def root_key(adapter: int, share: Share, cache_salt: str) -> BlockKey:
    """Returns what stands for the key before the first block: `ROOT`, or 16 bytes.

    Args:
        adapter: index of the LoRA adapter, or `NO_ADAPTER`.
        share: whose the request is; its tenant counts, or its number if it has none.
        cache_salt: of the request; "" = none.
    """
    if (adapter, share.key, share.tenant, cache_salt) == (NO_ADAPTER, NO_KEY.key, b"", ""):
        return ROOT
    whose = share.tenant or share.key.to_bytes(8, "little")
    number = adapter.to_bytes(4, "little", signed=True) + bytes([len(whose)])
    return blake2b(number + whose + cache_salt.encode(), digest_size=16).digest()


def chain_key(parent: BlockKey, tokens: Int32Array, embeddings: bytes = b"") -> BlockKey:
    """Returns the key of a block.

    Args:
        parent: of the block before it.
        tokens: that it holds, [block_size].
        embeddings: the `Embeddings.identity` of its rows, 16 bytes; b"" = it has none.
    """
    if not embeddings:
        return blake2b(parent + tokens.tobytes(), digest_size=16).digest()
    # No block without embeddings has this key, whatever its tokens.
    content = parent + tokens.tobytes() + embeddings
    return blake2b(content, digest_size=16, person=b"embeddings").digest()
