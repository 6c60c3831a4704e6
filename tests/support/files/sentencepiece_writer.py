"""Writes `tokenizer.model` files, in Protocol Buffers, as SentencePiece does."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from rocmforge.checkpoint.tokenizer import TokenType

Piece = tuple[str, float, TokenType]


def model_bytes(pieces: Iterable[Piece], *, dummy_prefix: bool = True, **fields: Any) -> bytes:
    """A BPE vocabulary like Llama's.

    Args:
        pieces: Text, score and type of each token.
        dummy_prefix: Whether a space is put before a text.
        fields: `trainer` and `normalizer`: more fields, by their numbers.
    """
    trainer = {3: 2, 35: 1, **fields.get("trainer", {})}
    normalizer = {1: b"identity", 3: int(dummy_prefix), 4: 0, **fields.get("normalizer", {})}
    parts = [
        _field(1, _message({1: text.encode(), 3: int(kind)}) + b"\x15" + struct.pack("<f", score))
        for text, score, kind in pieces
    ]
    return b"".join([*parts, _field(2, _message(trainer)), _field(3, _message(normalizer))])


def pieces_of(texts: Iterable[str], user_defined: Iterable[str] = ()) -> list[Piece]:
    """The tokens of a vocabulary: three special ones, others, bytes, then what was merged."""
    special = [
        ("<unk>", TokenType.UNKNOWN),
        ("<s>", TokenType.CONTROL),
        ("</s>", TokenType.CONTROL),
    ]
    found = [(text, 0.0, kind) for text, kind in special]
    found += [(text, 0.0, TokenType.USER_DEFINED) for text in user_defined]
    found += [(f"<0x{byte:02X}>", 0.0, TokenType.BYTE) for byte in range(256)]
    return [*found, *((text, -float(rank), TokenType.NORMAL) for rank, text in enumerate(texts))]


def _message(fields: dict[int, int | bytes]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields.items())


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value & (1 << 64) - 1)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = []
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
