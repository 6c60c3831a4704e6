"""The vocabulary of a GGUF file: pieces, their types and scores, and the ids that mean something.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer, and the newer ones that
llama.cpp's converter writes. The end-of-generation set follows llama.cpp (`src/llama-vocab.cpp`),
because the files themselves often name only one of several tokens that end a turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from rocmforge.errors import BadTokenizer

Metadata = Mapping[str, Any]

_PREFIX = "tokenizer.ggml."

# Token texts that end a generation wherever they occur in a vocabulary.
_END_OF_GENERATION = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        # Fill-in-the-middle tokens after which a file, not a turn, has ended.
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    }
)

# Where all tokens of a set are there, `<|end|>` ends a message but not the turn.
_MESSAGE_FORMATS = (
    frozenset({"<|return|>", "<|call|>"}),
    frozenset({"<|calls|>", "<|flush|>"}),
)


# BOS, EOS and unknown token of a model whose file does not name them.
_DEFAULT_IDS = {"llama": (1, 2, None), "bert": (101, 102, 100), "t5": (None, 1, 2)}


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens as the file spells them; index is the token id.

    `scores` is empty where the file has none. `eos_ids` starts with the file's own EOS token. What
    BERT calls CLS and SEP are BOS and EOS here; `separator_id` stands between two texts.
    """

    model: str
    pre: str
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    scores: tuple[float, ...]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    unknown_id: int | None
    separator_id: int | None

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Vocabulary:
        """Read and check the vocabulary.

        Raises:
            BadTokenizer: a key is missing, or two of them contradict each other.
        """
        model = string(metadata, "model")
        if model is None:
            raise BadTokenizer(f"The file has no tokenizer: the key {_PREFIX}model is missing.")
        raw = strings(metadata, "tokens")
        if not raw:
            raise BadTokenizer(f"The file has no vocabulary: {_PREFIX}tokens is missing or empty.")
        # A vocabulary may have holes; they must not match the empty string between all characters.
        tokens = tuple(token or f"[EMPTY_{index}]" for index, token in enumerate(raw))
        if len(set(tokens)) != len(tokens):
            raise BadTokenizer(f"{_PREFIX}tokens has the same token twice.")
        types = _types(metadata, len(tokens))
        default_bos, default_eos, default_unknown = _DEFAULT_IDS.get(model, (None, None, None))
        separator = _token_id(metadata, "seperator_token_id", len(tokens), None)
        if model == "bert":  # older converters wrote these names only
            default_bos = _token_id(metadata, "cls_token_id", len(tokens), default_bos)
            default_eos = default_eos if separator is None else separator
        bos = _token_id(metadata, "bos_token_id", len(tokens), default_bos)
        enders = _enders(tokens)
        named = (
            _token_id(metadata, "eos_token_id", len(tokens), default_eos),
            _token_id(metadata, "eot_token_id", len(tokens), None),
            _token_id(metadata, "eom_token_id", len(tokens), None),
        )
        # Some converters mark tokens that end a turn as ordinary text; plain text must not be
        # able to spell them.
        types = tuple(
            TokenType.CONTROL if index in enders else type_ for index, type_ in enumerate(types)
        )
        return cls(
            model=model,
            pre=string(metadata, "pre") or "",
            tokens=tokens,
            types=types,
            scores=tuple(numbers(metadata, "scores", len(tokens))),
            bos_id=bos,
            eos_ids=tuple(dict.fromkeys([i for i in named if i is not None] + sorted(enders))),
            unknown_id=_token_id(metadata, "unknown_token_id", len(tokens), default_unknown),
            separator_id=separator,
        )

    def ids_of(self, *types: TokenType) -> tuple[int, ...]:
        """Ids of all tokens that have one of these types, ascending."""
        return tuple(index for index, type_ in enumerate(self.types) if type_ in types)

    @property
    def unknown_token(self) -> int:
        """The token for what no other spells; raises BadTokenizer if there is none."""
        if self.unknown_id is None:
            raise BadTokenizer(
                f"The file does not name its unknown token ({_PREFIX}unknown_token_id)."
            )
        return self.unknown_id

    def check_byte_tokens(self) -> None:
        """Raise BadTokenizer unless there is a token for every byte, spelled like `<0x0A>`."""
        missing = {f"<0x{byte:02X}>" for byte in range(256)}.difference(self.tokens)
        if missing:
            raise BadTokenizer(
                f"The SentencePiece vocabulary lacks {len(missing)} of 256 byte tokens, "
                f"for example {min(missing)}."
            )


def string(metadata: Metadata, key: str) -> str | None:
    """Returns the string `tokenizer.ggml.<key>`, if there is one."""
    value = metadata.get(_PREFIX + key)
    if value is not None and not isinstance(value, str):
        raise _wrong_type(key, value, "a string")
    return value


def flag(metadata: Metadata, key: str, default: bool) -> bool:
    """Returns the boolean `tokenizer.ggml.<key>`."""
    value = metadata.get(_PREFIX + key, default)
    if not isinstance(value, bool):
        raise _wrong_type(key, value, "a boolean")
    return value


def strings(metadata: Metadata, key: str) -> list[str]:
    """Returns the array of strings `tokenizer.ggml.<key>`; empty if there is none."""
    value = metadata.get(_PREFIX + key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong_type(key, value, "an array of strings")
    try:
        "".join(value).encode()
    except UnicodeEncodeError as error:
        raise BadTokenizer(f"{_PREFIX}{key} has an entry that is not UTF-8.") from error
    return value


def numbers(metadata: Metadata, key: str, size: int) -> list[Any]:
    """Returns the numbers `tokenizer.ggml.<key>`, one per token; empty if there are none."""
    value = metadata.get(_PREFIX + key, ())
    values = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(values, list | tuple) or not all(isinstance(n, int | float) for n in values):
        raise _wrong_type(key, value, "an array of numbers")
    if len(values) not in (0, size):
        raise BadTokenizer(
            f"{_PREFIX}{key} has {len(values)} entries, but the vocabulary has {size} tokens."
        )
    return list(values)


def _wrong_type(key: str, value: object, wanted: str) -> BadTokenizer:
    return BadTokenizer(f"{_PREFIX}{key} is of type {type(value).__name__}, not {wanted}.")


def _types(metadata: Metadata, size: int) -> tuple[TokenType, ...]:
    known = {int(type_): type_ for type_ in TokenType}
    values = numbers(metadata, "token_type", size) or [TokenType.NORMAL] * size
    return tuple(known.get(value, TokenType.UNDEFINED) for value in values)


def _token_id(metadata: Metadata, key: str, size: int, default: int | None) -> int | None:
    value = metadata.get(_PREFIX + key)
    if value is None:
        return default if default is not None and default < size else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(key, value, "an integer")
    if not 0 <= value < size:
        raise BadTokenizer(f"{_PREFIX}{key} is {value}, but the vocabulary has {size} tokens.")
    return value


def _enders(tokens: tuple[str, ...]) -> frozenset[int]:
    """Returns tokens that end a generation because of how they are spelled."""
    ids = {token: index for index, token in enumerate(tokens) if token in _END_OF_GENERATION}
    for together in _MESSAGE_FORMATS:
        if together <= ids.keys():
            ids.pop("<|end|>", None)
    if "<|tool_response>" in ids:
        ids.pop("</s>", None)  # there it is the HTML tag that ends struck-through text
    return frozenset(ids.values())
