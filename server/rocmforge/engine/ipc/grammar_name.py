"""The names under which long grammars are known, so that each is sent and kept once."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

INLINE_CHARACTERS: Final = 1024
"""Up to this length a grammar stands in the request itself."""
_PREFIX: Final = "blake2b:"  # no grammar begins with it: they are JSON


def grammar_name(grammar: str) -> str:
    """Returns a name that no other grammar has; hashes the text."""
    return _PREFIX + blake2b(grammar.encode(), digest_size=16).hexdigest()
