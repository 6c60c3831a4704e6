"""Tokenizers that `tokenizer.json` describes: the file of the library `tokenizers` itself.

What the file says of special tokens is taken out of it: they are found before text gets to the
library, and in its model no text can become one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
from tokenizers import Tokenizer

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.errors import BadTokenizer
from rocmforge.text.tokenizer import bpe, spm
from rocmforge.text.tokenizer.unigram import check_charsmap
from rocmforge.text.tokenizer.vocabulary import Vocabulary

_HIDDEN: Final = (TokenType.CONTROL, TokenType.UNKNOWN)
_UNKNOWN: Final = "\uffff"
"""Spelling of the unknown token within the model: a character that is in no vocabulary."""

Definition = Mapping[str, Any]


class LibraryTokenizer(NamedTuple):
    """A model, and what is to be known of it.

    Attributes:
        model: For text that begins a prompt.
        inner: For text behind a special token; the same object, unless a space is put before the
            first word of a prompt only.
        ids: The token id of each entry of the model, where these differ.
        has_leading_space: A space is put before a text.
        piece: Returns the bytes that a token of a type stands for.
    """

    model: Tokenizer
    inner: Tokenizer
    ids: tuple[int, ...] | None
    has_leading_space: bool
    piece: Callable[[str, TokenType], bytes]


def build(vocabulary: Vocabulary, definition: Definition) -> LibraryTokenizer:
    """Builds the model of a definition that has normalizer, pre_tokenizer, model and decoder.

    Raises:
        BadTokenizer: The library refuses it, or its table of replacements is broken.
    """
    hidden = {vocabulary.tokens[index] for index in vocabulary.ids_of(*_HIDDEN)}
    parts = [*_walk(definition.get("normalizer")), *_walk(definition.get("pre_tokenizer"))]
    for part in parts:
        if part.get("type") == "Precompiled":
            check_charsmap(_charsmap(part))
    source = definition["model"]
    kind, ids = source["type"], None
    if kind == "Unigram":
        model, ids = _unigram(source, vocabulary, hidden)
    else:
        model = _with_vocabulary(source, vocabulary, hidden)
    tokenizer = _load(definition, model)
    prepends_once = any(part.get("prepend_scheme") == "first" for part in parts)
    inner = _load(_without_prefix(definition), model) if prepends_once else tokenizer
    names = {str(part.get("type")) for part in (*parts, *_walk(definition.get("decoder")))}
    piece: Callable[[str, TokenType], bytes] = spm.piece_bytes
    if kind == "WordPiece":
        piece = _WordPieces(str(source.get("continuing_subword_prefix", "##")))
    elif "ByteLevel" in names:
        piece = bpe.piece_bytes
    return LibraryTokenizer(
        tokenizer,
        inner,
        ids,
        kind == "WordPiece" or any(_prepends_space(part) for part in parts),
        piece,
    )


def _load(definition: Definition, model: Definition) -> Tokenizer:
    document: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": definition.get("normalizer"),
        "pre_tokenizer": definition.get("pre_tokenizer"),
        "post_processor": None,
        "decoder": None,
        "model": model,
    }
    with failures_named():
        return Tokenizer.from_str(msgspec.json.encode(document).decode())


@contextmanager
def failures_named() -> Iterator[None]:
    """Turns what the library raises into BadTokenizer, but for what it says of a lone surrogate.

    It raises plain Exception, for some definitions at the first text that they cannot spell. What
    it does not expect is a panic of Rust, which is no Exception at all.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, UnicodeEncodeError, TypeError):
        raise
    except BaseException as error:
        raise BadTokenizer(f"tokenizer.json cannot be used: {error}.") from error


def _walk(part: object) -> Iterator[Definition]:
    """Yields a part of the definition and those that it is a sequence of."""
    if isinstance(part, dict):
        yield part
        for value in part.values():
            if isinstance(value, list):
                for item in value:
                    yield from _walk(item)


def _charsmap(part: Definition) -> bytes:
    try:
        return base64.b64decode(str(part.get("precompiled_charsmap") or ""), validate=True)
    except ValueError as error:
        raise BadTokenizer(f"The precompiled_charsmap of tokenizer.json: {error}.") from error


def _with_vocabulary(
    source: Definition, vocabulary: Vocabulary, hidden: set[str]
) -> dict[str, Any]:
    """Returns the model of BPE or WordPiece without tokens that no text may become."""
    size = len(vocabulary.tokens)
    ids = {
        token: index
        for token, index in source["vocab"].items()
        if token not in hidden and index < size
    }
    model = {**source, "vocab": ids}
    unknown, merges = source.get("unk_token"), source.get("merges", [])
    if not isinstance(unknown, str | None):
        raise BadTokenizer("The unk_token of tokenizer.json is no text.")
    if not isinstance(merges, list):
        raise BadTokenizer("The merges of tokenizer.json are no list.")
    if unknown in hidden:
        # No word has a space, and no merge leads to two such characters.
        spelling = " " if source["type"] == "WordPiece" else 2 * _UNKNOWN
        ids[spelling] = vocabulary.tokens.index(unknown)
        model["unk_token"] = spelling
    if source["type"] == "WordPiece" and model.get("unk_token", "[UNK]") not in ids:
        raise BadTokenizer("The unk_token of tokenizer.json is not in its vocabulary.")
    if len(ids) < len(source["vocab"]) and "merges" in source:
        model["merges"] = [merge for merge in merges if _is_within(merge, ids)]
    return model


def _is_within(merge: object, ids: Mapping[str, int]) -> bool:
    """Returns whether a merge of two tokens, in either spelling, leads from tokens to a token."""
    pair = merge.split(" ", 1) if isinstance(merge, str) else merge
    if (
        not isinstance(pair, list)
        or len(pair) != 2
        or not all(isinstance(part, str) for part in pair)
    ):
        raise BadTokenizer("The merges of tokenizer.json are not all of two tokens.")
    left, right = pair
    return left in ids and right in ids and left + right in ids


def _unigram(
    source: Definition, vocabulary: Vocabulary, hidden: set[str]
) -> tuple[dict[str, Any], tuple[int, ...]]:
    entries = [
        (index, entry)
        for index, entry in enumerate(source["vocab"][: len(vocabulary.tokens)])
        if entry[0] not in hidden
    ]
    lowest = min((score for _, (_, score) in entries), default=0.0)
    vocab = [[_UNKNOWN, lowest], *(entry for _, entry in entries)]
    model = {**source, "vocab": vocab, "unk_id": 0}
    return model, (vocabulary.unknown_token, *(index for index, _ in entries))


def _prepends_space(part: Definition) -> bool:
    match part.get("type"):
        case "Prepend":
            return part.get("prepend") == spm.SPACE
        case "Metaspace":
            scheme = part.get("prepend_scheme", "always")
            return bool(part.get("add_prefix_space", True)) and scheme != "never"
    return False


def _without_prefix(part: Any) -> Any:
    """Returns the definition with nothing put before the first word."""
    if isinstance(part, list):
        return [_without_prefix(item) for item in part]
    if not isinstance(part, dict):
        return part
    changed = {
        key: value if key == "model" else _without_prefix(value) for key, value in part.items()
    }
    return changed | ({"prepend_scheme": "never"} if "prepend_scheme" in part else {})


class _WordPieces:
    """Returns the bytes of a WordPiece token: one that begins a word has a space before it."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __call__(self, token: str, type_: TokenType) -> bytes:
        if self._prefix and token.startswith(self._prefix):
            return token.removeprefix(self._prefix).encode()
        return f" {token}".encode()
