"""Tiny vocabularies, as GGUF metadata."""

from __future__ import annotations

from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def _byte_characters() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def byte_level(**changes: Any) -> dict[str, Any]:
    """Byte-level BPE: all bytes, a few merges, control tokens and a user-defined one."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ã ©"]
    tokens = [*_byte_characters(), *(merge.replace(" ", "") for merge in merges)]
    types = [NORMAL] * len(tokens)
    for token, type_ in (
        ("<|start|>", CONTROL),
        ("<|end|>", CONTROL),
        ("<|end|>x", CONTROL),
        ("<tool>", USER_DEFINED),
    ):
        tokens.append(token)
        types.append(type_)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|end|>"),
    }
    return _changed(metadata, changes)


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """SentencePiece BPE with scores, byte tokens and a space prefix."""
    pieces = ["▁h", "el", "lo", "▁hel", "▁hello", "▁▁", "▁▁▁", "aa", "aaa"]
    characters = list("▁helowrda,.")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    scores = [0.0] * len(tokens)
    for rank, piece in enumerate(pieces + characters):
        tokens.append(piece)
        types.append(NORMAL)
        scores.append(-float(rank))
    tokens.append("<tool>")
    types.append(USER_DEFINED)
    scores.append(0.0)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return _changed(metadata, changes)


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Replace `tokenizer.ggml.<name>`; None removes it."""
    for name, value in changes.items():
        key = f"tokenizer.ggml.{name}"
        if value is None:
            metadata.pop(key)
        else:
            metadata[key] = value
    return metadata
