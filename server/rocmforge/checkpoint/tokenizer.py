"""The tokenizer of a checkpoint as plain values, whatever file they were in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

LIBRARY_MODEL: Final = "tokenizer.json"
"""The model of a tokenizer that comes as a definition for the library `tokenizers`."""


class TokenType(IntEnum):
    """The meaning of a token, with GGUF's numbers."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizerData:
    """A vocabulary and the rules that go with it, as a file states them.

    A reader has checked types, that tokens differ from each other, that there is a value for each
    token or none at all, and that ids are in the vocabulary.
    """

    model: str  # what spells a word: "gpt2" (byte-level BPE), "gemma4", "llama", "bert", "t5", or
    # LIBRARY_MODEL, for which only tokens, types, ids, `strips_after` and `definition` matter
    pre: str = ""  # the pre-tokenizer of a byte-level vocabulary
    tokens: tuple[str, ...]  # by id, none empty
    types: tuple[TokenType, ...]
    scores: tuple[float, ...] = ()  # empty: there are none
    merges: Sequence[str] = ()  # "left right", the first to be made first
    bos_id: int | None = None  # what BERT calls CLS
    behind_bos: tuple[int, ...] = ()  # tokens that follow BOS wherever it is put before a text
    end_ids: tuple[int, ...] = ()  # of EOS, of turn, of message; what BERT calls SEP is EOS
    unknown_id: int | None = None
    separator_id: int | None = None  # between two texts
    infill_ids: tuple[int | None, int | None, int | None] = (None, None, None)  # as InfillTokens
    adds_bos: bool | None = None  # None: as other models of its kind
    adds_eos: bool | None = None
    adds_separator: bool | None = None
    adds_space_prefix: bool = True
    prefixes_start_only: bool = False  # not also behind special tokens
    lowercase: bool = True
    strip_accents: bool = True
    escapes_user_defined: bool = False  # "▁" is a space in these tokens, too
    charsmap: bytes = b""  # SentencePiece's table of replacements
    strips_after_special: bool = False  # special tokens swallow the white space behind them
    strips_after: frozenset[int] = frozenset()  # these do
    # "normalizer", "pre_tokenizer", "model" and "decoder" of a tokenizer.json
    definition: Mapping[str, Any] = field(default_factory=dict)
