"""The token ids of long texts: a conversation comes again with each of its turns.

Messages stand between control tokens, so that the tokens of one depend on nothing else. Of a prompt
of 30,000 tokens that an agent sends with one more message, that message alone is tokenised.

How long it takes tells whether a text was there before. So whoever may not find another one's
blocks in the prefix cache finds no texts of theirs here either: the key of a text begins with whose
it is. Texts are not kept, only digests of them.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Final

LEAST: Final = 64
"""Characters of a text that is remembered; others take hardly longer to tokenise than to find."""
ENTRY: Final = 64
"""Tokens that take as much memory as what a text takes beside its own."""
_MOST_TOKENS: Final = 1 << 22  # 16 MiB


class EncodedTexts:
    """The token ids of texts, those that were not used for longest given up first.

    Safe to use from several threads.

    Args:
        most_tokens: of all texts together, each with `ENTRY` more than it has.
    """

    def __init__(self, most_tokens: int = _MOST_TOKENS) -> None:
        self._most = most_tokens
        self._lock = Lock()
        self._ids: OrderedDict[bytes, array[int]] = OrderedDict()
        self._num_tokens = 0

    def of(self, whose: bytes) -> OwnTexts:
        """Returns the texts that somebody may find.

        Args:
            whose: says who it is: `root_key`.
        """
        return OwnTexts(self, whose)

    def find(self, key: bytes) -> Sequence[int] | None:
        """Returns the ids that were kept under a key, if they still are; nobody changes them."""
        with self._lock:
            found = self._ids.get(key)
            if found is None:
                return None
            self._ids.move_to_end(key)
        return found

    def keep(self, key: bytes, ids: list[int]) -> None:
        """Keeps ids under a key, unless they are more than all may be."""
        if len(ids) + ENTRY > self._most:
            return
        with self._lock:
            before = self._ids.pop(key, None)
            self._num_tokens += len(ids) - (-ENTRY if before is None else len(before))
            self._ids[key] = array("i", ids)
            while self._num_tokens > self._most:
                _, oldest = self._ids.popitem(last=False)
                self._num_tokens -= len(oldest) + ENTRY


@dataclass(frozen=True, slots=True)
class OwnTexts:
    """The texts of one who asks."""

    texts: EncodedTexts
    whose: bytes

    def key_of(self, text: str) -> bytes | None:
        """Returns the key of a text; None if it is not worth it."""
        if len(text) < LEAST:
            return None
        whole = len(self.whose).to_bytes(1, "little") + self.whose + text.encode()
        return blake2b(whole, digest_size=16).digest()
