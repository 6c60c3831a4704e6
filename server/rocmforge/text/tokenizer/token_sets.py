"""Sets of tokens by what their texts contain."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Final

import numpy as np

from rocmforge.text.tokenizer.tokenizer import Tokenizer

_REMEMBERED: Final = 64


class TokenSets:
    """Finds sets of tokens, and remembers the latest: a search looks at the whole vocabulary.

    Args:
        tokenizer: whose tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._found = lru_cache(_REMEMBERED)(partial(_bits, tokenizer))

    def bits(self, entries: tuple[int | str, ...], vocab_size: int) -> bytes:
        """Returns a bit for each of `vocab_size` tokens, in little-endian 32-bit words.

        Args:
            entries: ids of tokens in the set, and texts: whatever token contains one is in the
                set, too. A text that no token contains stands for the last token of what it is
                tokenised to.
            vocab_size: of the backend, which may be larger than the tokenizer's.
        """
        return self._found(entries, vocab_size)


def _bits(tokenizer: Tokenizer, entries: tuple[int | str, ...], vocab_size: int) -> bytes:
    pieces = tokenizer.piece_tables(skip_special=False).data
    holds = np.zeros(-(-max(vocab_size, len(pieces)) // 32) * 32, np.bool_)
    for entry in entries:
        if isinstance(entry, int):
            holds[entry] = True
            continue
        text = entry.encode()
        found = np.fromiter((text in piece for piece in pieces), np.bool_, len(pieces))
        holds[: len(pieces)] |= found
        if not found.any():
            holds[tokenizer.encode(entry, parse_special=False)[-1]] = True
    return np.packbits(holds, bitorder="little").tobytes()
