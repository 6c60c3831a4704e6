"""SentencePiece BPE vocabularies (`tokenizer.ggml.model` = llama), built on `tokenizers`.

SentencePiece has no list of merges: it joins, again and again, the two neighbours whose
concatenation is the token with the highest score, the leftmost on a tie. The same is had from BPE
merges when every split of a token into two tokens is a merge, ranked by the score of the token.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer, models, normalizers

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.errors import BadTokenizer
from rocmforge.text.tokenizer.vocabulary import Vocabulary

SPACE = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def build(vocabulary: Vocabulary) -> Tokenizer:
    """Build the model. It expects text that already has its space prefix.

    Raises:
        BadTokenizer: there are no scores, or it lacks byte tokens for unknown characters.
    """
    if not vocabulary.scores:
        raise BadTokenizer(
            "The SentencePiece vocabulary has no scores (tokenizer.ggml.scores of a GGUF file)."
        )
    ids = {
        token: index
        for index, token in enumerate(vocabulary.tokens)
        if vocabulary.types[index] not in (TokenType.CONTROL, TokenType.UNKNOWN)
    }
    vocabulary.check_byte_tokens()
    # Byte tokens are spelled like text, `<0x41>`; text that is spelled so is not that byte.
    mergeable = {
        token: index
        for token, index in ids.items()
        if vocabulary.types[index] is not TokenType.BYTE
    }
    tokenizer = Tokenizer(
        models.BPE(vocab=ids, merges=_merges(mergeable, vocabulary.scores), byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    return tokenizer


def _merges(ids: dict[str, int], scores: tuple[float, ...]) -> list[tuple[str, str]]:
    """Returns all merges, best first.

    Merges of equal score are ordered by the length of their left part, longest first: then a run
    of one character grows from its left end, as it does when ties go to the leftmost pair.
    """
    ranked = []
    for token, index in ids.items():
        score = -scores[index]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((score, -cut, left, right))
    ranked.sort()
    return [(left, right) for _, _, left, right in ranked]


def piece_bytes(token: str, type_: TokenType) -> bytes:
    """Returns the bytes that a token stands for: `▁` is a space, `<0xNN>` a byte."""
    if type_ is TokenType.BYTE:
        match = _BYTE_TOKEN.fullmatch(token)
        if match is None:
            raise BadTokenizer(f"The byte token {token!r} is not spelled like <0x0A>.")
        return bytes.fromhex(match[1])
    return token.replace(SPACE, " ").encode()
