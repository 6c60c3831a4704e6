"""WordPiece vocabularies (`tokenizer.ggml.model` = bert), built on `tokenizers`.

Text is cleaned, lower-cased where the model wants that, cut at white space, punctuation and Chinese
characters, and each word is spelled with the longest tokens from its left (Devlin et al. 2019).
GGUF spells a token that begins a word `▁word` and one that continues it `ing`; the library wants
`word` and `##ing`.
"""

from __future__ import annotations

from typing import Final

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.text.tokenizer.vocabulary import Vocabulary

SPACE: Final = "▁"
_CONTINUES: Final = "##"
_UNKNOWN: Final = " "
"""Spelling of the unknown token within the model: no word has a space."""
_MAX_CHARACTERS: Final = 100
"""Of a word; longer ones are unknown, as in the original code."""


def build(vocabulary: Vocabulary, *, lowercase: bool, strip_accents: bool) -> Tokenizer:
    """Build the model. Control tokens are left out of it: no text can become one."""
    special = (TokenType.CONTROL, TokenType.UNKNOWN)
    ids = {
        _spelling(token): index
        for index, token in enumerate(vocabulary.tokens)
        if vocabulary.types[index] not in special
    }
    ids[_UNKNOWN] = vocabulary.unknown_token
    tokenizer = Tokenizer(
        models.WordPiece(
            vocab=ids,
            unk_token=_UNKNOWN,
            max_input_chars_per_word=_MAX_CHARACTERS,
            continuing_subword_prefix=_CONTINUES,
        )
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _spelling(token: str) -> str:
    return token[1:] if token.startswith(SPACE) else _CONTINUES + token
