"""The token ids of texts: a conversation comes again with each of its turns.

Messages stand between control tokens, so that the tokens of one depend on nothing else. Of a prompt
of 30,000 tokens that an agent sends with one more message, that message alone is tokenised.

How long it takes tells whether a text was there before. So whoever may not find another one's
blocks in the prefix cache finds no texts of theirs here either: the key of a text begins with whose
it is. Texts are not kept, only digests of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from rocmforge.latest_used import LatestUsed

ENTRY: Final = 64
"""Tokens that take as much memory as what a text takes beside its own."""
_MOST_TOKENS: Final = 1 << 22  # 16 MiB


class EncodedTexts:
    """The token ids of texts, those that were not used for longest given up first.

    Safe to use from several threads.

    Args:
        most_tokens: Of all texts together, each with `ENTRY` more than it has.
    """

    def __init__(self, most_tokens: int = _MOST_TOKENS) -> None:
        self._ids: LatestUsed[bytes, array[int]] = LatestUsed(most_tokens)

    def of(self, whose: bytes) -> OwnTexts:
        """Returns the texts that somebody may find.

        Args:
            whose: Says who it is: `root_key`.
        """
        return OwnTexts(self._ids, whose)


@dataclass(frozen=True, slots=True)
class OwnTexts:
    """The texts of one who asks."""

    ids: LatestUsed[bytes, array[int]]
    whose: bytes

    def key_of(self, text: str) -> bytes:
        """Returns the key of a text."""
        whole = len(self.whose).to_bytes(1, "little") + self.whose + text.encode()
        return blake2b(whole, digest_size=16).digest()

    def find(self, key: bytes) -> Sequence[int] | None:
        """Returns the ids that were kept under a key, if they still are; nobody changes them."""
        return self.ids.find(key)

    def keep(self, key: bytes, ids: Sequence[int]) -> None:
        """Keeps ids under a key, if there is room."""
        self.ids.keep(key, array("i", ids), len(ids) + ENTRY)
