"""The prefixes whose blocks a replica still has, as far as can be told from outside its engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from rocmforge.ray.routing import Key, packed, piece_bytes

MAX_PUBLISHED: Final = 4096
"""Keys of a replica: 32 KiB in each publication, 8 MiB of text."""
BYTES_PER_TOKEN: Final = 4


class Prefixes:
    """Keys of prompts that were computed, the least recently used of which go first.

    The engine's cache does the same with blocks. So a key goes once prompts of as much text as
    the cache has room for have come after it.
    """

    def __init__(self) -> None:
        self._sizes: OrderedDict[Key, int] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, keys: Sequence[Key], room_tokens: int) -> None:
        """Notes a prompt.

        Args:
            keys: of its beginnings, the shortest first.
            room_tokens: of the KV cache.
        """
        for number, key in reversed(tuple(enumerate(keys))):  # a prefix loses its tail first
            if key not in self._sizes:
                self._sizes[key] = piece_bytes(number)
                self._bytes += self._sizes[key]
            self._sizes.move_to_end(key)
        while len(self) > MAX_PUBLISHED or self._bytes > room_tokens * BYTES_PER_TOKEN:
            _, size = self._sizes.popitem(last=False)
            self._bytes -= size

    def clear(self) -> None:
        """Forgets all: the engine has begun anew."""
        self._sizes.clear()
        self._bytes = 0

    def published(self) -> bytes:
        """Returns all keys in a row."""
        return packed(self._sizes)
