"""Keys of the blocks of sequences that ended lately, for those that begin alike.

A conversation comes again with each of its turns. To compare its tokens with those of the turn
before takes a hundredth of the time that it takes to make the keys of its blocks again.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from rocmforge.backend.arrays import Int32Array
from rocmforge.engine.sequence.block_keys import BlockKey
from rocmforge.engine.sequence.sequence import Sequence

MOST: Final = 16
"""Sequences, of which each has its tokens and a key for each block of them."""


class _Recent(NamedTuple):
    root: BlockKey
    tokens: Int32Array
    keys: list[BlockKey]  # of the first blocks of these


class RecentKeys:
    """The keys of some sequences, of which the one that ended last comes first."""

    def __init__(self) -> None:
        self._recent: deque[_Recent] = deque(maxlen=MOST)

    def keep(self, seq: Sequence) -> None:
        """Remembers the keys of a sequence that ends, unless they are of rows of embeddings."""
        keys = seq.keys
        if seq.embeddings is None and keys:
            tokens = seq.tokens[: len(keys) * seq.block_size]
            self._recent.appendleft(_Recent(seq.root_key, tokens, keys))

    def recall(self, seq: Sequence) -> None:
        """Gives a sequence without keys those that another one had for the same tokens."""
        if seq.keys or seq.embeddings is not None or not self._recent:
            return
        size, root, best = seq.block_size, seq.root_key, list[BlockKey]()
        known = seq.tokens[: seq.num_known]
        for recent in self._recent:
            count = min(len(recent.tokens), len(known))
            if recent.root != root or count // size <= len(best):
                continue
            differs = recent.tokens[:count] != known[:count]
            first = int(differs.argmax())
            alike = (first if differs[first] else count) // size
            if alike > len(best):
                best = recent.keys[:alike]
        seq.keys = best
