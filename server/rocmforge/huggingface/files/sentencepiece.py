"""`tokenizer.model`: a vocabulary as SentencePiece writes it, in Protocol Buffers.

Fields: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto. A dozen
of them are read, so a walk over the bytes does instead of the package, whose own algorithm has no
use here: the server builds the same tokenizer as for GGUF files.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.errors import BadTokenizer

MAX_BYTES: Final = 16 << 20
"""The largest known, of 262,000 tokens, has 4.7 MiB."""
MAX_PIECE: Final = 1024
"""Characters of a token: how it may be put together is tried at each."""
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_MAX_VARINT_BYTES: Final = 10
_BPE: Final = 2
_KINDS: Final = {1: "unigram", _BPE: "BPE", 3: "words", 4: "characters"}
_TYPES: Final = {int(each): each for each in TokenType if each is not TokenType.UNDEFINED}


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """A vocabulary whose pieces are put together by their scores."""

    pieces: tuple[str, ...]  # by id, all different
    scores: tuple[float, ...]
    types: tuple[TokenType, ...]
    bos: str | None
    eos: str | None
    unknown: str | None
    adds_space_prefix: bool


def read_model(data: bytes, path: Path) -> SentencePieceModel:
    """Reads the file.

    Args:
        data: All of it.
        path: Its name, for messages.

    Raises:
        BadTokenizer: It is broken, or a tokenizer of a kind that we do not have.
    """
    try:
        return _read(data)
    except ValueError as error:
        raise BadTokenizer(f"{path}: {error}.") from error


def _read(data: bytes) -> SentencePieceModel:
    pieces: list[tuple[str, float, TokenType]] = []
    trainer, normalizer = b"", b""
    for field, value in _fields(data):
        match field, value:
            case 1, bytes():
                pieces.append(_piece(value, len(pieces)))
            case 2, bytes():
                trainer += value  # parts of one message count as one
            case 3, bytes():
                normalizer += value
    _check_normalizer(dict(_fields(normalizer)))
    settings = dict(_fields(trainer))
    kind = settings.get(3, 1)
    if kind != _BPE:
        raise ValueError(
            f"it is of the kind {_KINDS.get(_number(kind), kind)}; only BPE is read. "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...) of Transformers writes the "
            "tokenizer.json that is read of others"
        )
    if settings.get(24):
        raise ValueError("its words end in spaces (treat_whitespace_as_suffix): not supported")
    texts = tuple(text for text, _, _ in pieces)
    if len(set(texts)) != len(texts) or not texts:
        raise ValueError("it has no tokens, or one twice")

    def named(field: int, usual: int) -> str | None:
        index = _number(settings.get(field, usual))
        return texts[index] if 0 <= index < len(texts) else None

    return SentencePieceModel(
        pieces=texts,
        scores=tuple(score for _, score, _ in pieces),
        types=tuple(kind for _, _, kind in pieces),
        unknown=named(40, 0),
        bos=named(41, 1),
        eos=named(42, 2),
        adds_space_prefix=bool(dict(_fields(normalizer)).get(3, True)),
    )


def _check_normalizer(settings: dict[int, int | bytes]) -> None:
    if settings.get(2) or settings.get(6):
        raise ValueError("it replaces characters (precompiled_charsmap): not supported for BPE")
    if settings.get(4, True):
        raise ValueError("it removes spaces (remove_extra_whitespaces): not supported for BPE")
    if not settings.get(5, True):
        raise ValueError("it keeps spaces as they are (escape_whitespaces): not supported")


def _piece(data: bytes, index: int) -> tuple[str, float, TokenType]:
    fields = dict(_fields(data))
    raw, packed, type_ = fields.get(1, b""), fields.get(2, bytes(4)), fields.get(3, 1)
    if not isinstance(raw, bytes) or not isinstance(packed, bytes) or len(packed) != 4:
        raise ValueError(f"the token {index} is not text and score")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the token {index} is no UTF-8 text") from error
    (score,) = struct.unpack("<f", packed)
    if not 0 < len(text) <= MAX_PIECE or not math.isfinite(score):
        raise ValueError(f"the token {index} has {len(text)} characters and the score {score}")
    kind = _TYPES.get(_number(type_))
    if kind is None:
        raise ValueError(f"the token {index} is of an unknown type")
    return text, score, kind


def _number(value: int | bytes) -> int:
    """Returns a 32-bit integer, which may be negative."""
    if isinstance(value, bytes):
        raise ValueError("it has bytes in place of a number")
    return value - (1 << 64) if value >> 63 else value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field of a message: bytes, but for integers."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError("it is no SentencePiece model: a field is of a type that is none")
        if size > len(data) - at:
            raise ValueError("it is no SentencePiece model, or cut short")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the integer whose first byte is at a place, and the place behind it."""
    value = 0
    for shift, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value & (1 << 64) - 1, at + shift + 1
    raise ValueError("it is no SentencePiece model: a number has no end")
