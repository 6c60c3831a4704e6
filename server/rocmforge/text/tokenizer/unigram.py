"""Unigram vocabularies (`tokenizer.ggml.model` = t5), built on `tokenizers`.

Text is normalised by the table that the model was trained with, cut at spaces, and each word, with
`▁` before it, is spelled with the most probable tokens (Kudo 2018, arXiv:1804.10959).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.errors import BadTokenizer
from rocmforge.text.tokenizer.vocabulary import Vocabulary

SPACE: Final = "▁"
_UNKNOWN: Final = "\uffff"
"""Spelling of the unknown token within the model: a character that is in no vocabulary."""


class Unigram(NamedTuple):
    """A model, and the token id of each of its entries."""

    model: Tokenizer
    ids: tuple[int, ...]


def build(vocabulary: Vocabulary, charsmap: bytes) -> Unigram:
    """Build the model. Only ordinary tokens are in it: no text can become a control token.

    Args:
        vocabulary: The tokens.
        charsmap: The table by which text is normalised; empty for none.

    Raises:
        BadTokenizer: the file has no scores or no ordinary tokens, or its table is broken.
    """
    if not vocabulary.scores:
        raise BadTokenizer(
            "The unigram vocabulary has no scores (tokenizer.ggml.scores of a GGUF file)."
        )
    unknown = vocabulary.unknown_token
    normal = [index for index in vocabulary.ids_of(TokenType.NORMAL) if index != unknown]
    scores = [vocabulary.scores[index] for index in normal]
    if not normal or not np.isfinite(scores).all():
        raise BadTokenizer("The unigram vocabulary has no tokens, or scores are missing.")
    entries = [(_UNKNOWN, min(scores))]
    entries += [(vocabulary.tokens[index], vocabulary.scores[index]) for index in normal]
    tokenizer = Tokenizer(models.Unigram(entries, unk_id=0, byte_fallback=False))
    if charsmap:
        check_charsmap(charsmap)
        tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", behavior="removed"),
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
        ]
    )
    return Unigram(tokenizer, (unknown, *normal))


def check_charsmap(charsmap: bytes) -> None:
    """Walks a table that SentencePiece compiled: a double array of prefixes, and replacements.

    The library that reads it trusts its indices. A unit of the array holds an offset to its
    children in bits 10 to 30, shifted by 8 if bit 9 is set; bit 8 says that a value hangs there,
    and the low byte is the character that led to it (Yata et al. 2007,
    https://github.com/s-yata/darts-clone).

    Raises:
        BadTokenizer: an index leads out of the table.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size % 4 or size == 0 or 4 + size >= len(charsmap):
        raise _broken("its sizes do not fit")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    replacements = charsmap[4 + size :]
    if not replacements.endswith(b"\0"):
        raise _broken("its last replacement has no end")
    try:
        replacements.decode()
    except UnicodeDecodeError as error:
        raise _broken("its replacements are no UTF-8") from error
    characters = np.arange(1, 256)
    nodes = _children(units[:1], np.zeros(1, np.int64))
    is_new = np.ones(len(units), np.bool_)  # prefixes share what follows them
    while len(nodes):
        places = (nodes[:, None] ^ characters).reshape(-1)
        if places.max() >= len(units):
            raise _broken("a prefix leads out of it")
        led_by = np.tile(characters, len(nodes))
        found = places[(units[places] & 0x800000FF) == led_by]
        found = np.unique(found[is_new[found]])
        is_new[found] = False
        nodes = _children(units[found], found)
        with_value = nodes[(units[found] >> 8 & 1) == 1]
        if len(with_value):
            if with_value.max() >= len(units):
                raise _broken("a value leads out of it")
            if (units[with_value] & 0x7FFFFFFF).max() >= len(replacements):
                raise _broken("a replacement lies behind its end")


def _children(units: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns where the children of units at these places begin, before XOR with a character."""
    return places ^ (units >> 10 << ((units & 1 << 9) >> 6))


def _broken(reason: str) -> BadTokenizer:
    return BadTokenizer(
        f"The tokenizer's table of replacements (precompiled_charsmap) is broken: {reason}."
    )
