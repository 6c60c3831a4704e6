"""The tokenizer and the chat templates of a GGUF file.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer, and the newer ones that
llama.cpp's converter writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rocmforge.checkpoint.tokenizer import TokenizerData, TokenType
from rocmforge.errors import BadTokenizer

Metadata = Mapping[str, Any]

_PREFIX: Final = "tokenizer.ggml."
_TEMPLATE: Final = "tokenizer.chat_template"

# What a text begins with, by the pre-tokenizer. GGUF has a key for one token only, so the converter
# writes of GLM-4 that none is put before a text.
_STARTS: Final = dict.fromkeys(("chatglm-bpe", "glm4"), ("[gMASK]", "<sop>"))

# BOS, EOS and unknown token of a model whose file does not name them.
_DEFAULT_IDS: Final = {"llama": (1, 2, None), "bert": (101, 102, 100), "t5": (None, 1, 2)}


def has_tokenizer(metadata: Metadata) -> bool:
    """Returns whether the file has a tokenizer."""
    return f"{_PREFIX}model" in metadata


def read_tokenizer(metadata: Metadata) -> TokenizerData:
    """Reads and checks the tokenizer.

    Raises:
        BadTokenizer: A key is missing, or two of them contradict each other.
    """
    model = _string(metadata, "model")
    if model is None:
        raise BadTokenizer(f"The file has no tokenizer: the key {_PREFIX}model is missing.")
    raw = _strings(metadata, "tokens")
    if not raw:
        raise BadTokenizer(f"The file has no vocabulary: {_PREFIX}tokens is missing or empty.")
    # A vocabulary may have holes; they must not match the empty string between all characters.
    tokens = tuple(token or f"[EMPTY_{index}]" for index, token in enumerate(raw))
    if len(set(tokens)) != len(tokens):
        raise BadTokenizer(f"{_PREFIX}tokens has the same token twice.")
    size = len(tokens)
    bos, eos, unknown = _DEFAULT_IDS.get(model, (None, None, None))
    separator = _token_id(metadata, "seperator_token_id", size, None)
    if model == "bert":  # older converters wrote these names only
        bos = _token_id(metadata, "cls_token_id", size, bos)
        eos = eos if separator is None else separator
    ends = (
        _token_id(metadata, "eos_token_id", size, eos),
        _token_id(metadata, "eot_token_id", size, None),
        _token_id(metadata, "eom_token_id", size, None),
    )
    lowercase = _flag(metadata, "normalizer.lowercase")
    strip_accents = _flag(metadata, "normalizer.strip_accents")
    pre = _string(metadata, "pre") or ""
    texts = _STARTS.get(pre, ())
    start = tuple(map(tokens.index, texts)) if set(texts) <= set(tokens) else ()
    bos = start[0] if start else _token_id(metadata, "bos_token_id", size, bos)
    name = str(metadata.get("general.name", "")).lower()
    return TokenizerData(
        model=model,
        pre=pre,
        tokens=tokens,
        types=_types(metadata, size),
        scores=tuple(_numbers(metadata, "scores", size)),
        merges=_strings(metadata, "merges"),
        bos_id=bos,
        behind_bos=start[1:],
        end_ids=tuple(token_id for token_id in ends if token_id is not None),
        unknown_id=_token_id(metadata, "unknown_token_id", size, unknown),
        separator_id=separator,
        infill_ids=(
            _infill_id(metadata, "pre", size),
            _infill_id(metadata, "suf", size),
            _infill_id(metadata, "mid", size),
        ),
        adds_bos=True if start else _flag(metadata, "add_bos_token"),
        adds_eos=_flag(metadata, "add_eos_token"),
        adds_separator=_flag(metadata, "add_sep_token"),
        adds_space_prefix=_flag(metadata, "add_space_prefix") is not False,
        lowercase=lowercase is not False,
        strip_accents=(lowercase if strip_accents is None else strip_accents) is not False,
        charsmap=_bytes(metadata, "precompiled_charsmap"),
        # GGUF has no key for it. Phi-3 is the one family of chat models that needs it.
        strips_after_special="phi-3" in name or "phi3" in name,
    )


def read_templates(metadata: Metadata) -> dict[str, str]:
    """Returns the chat templates by name; the one without a name is "default"."""
    sources = {}
    for key, value in metadata.items():
        if key == _TEMPLATE:
            sources["default"] = str(value)
        elif key.startswith(f"{_TEMPLATE}."):
            sources[key.removeprefix(f"{_TEMPLATE}.")] = str(value)
    return sources


def _string(metadata: Metadata, key: str) -> str | None:
    value = metadata.get(_PREFIX + key)
    if value is not None and not isinstance(value, str):
        raise _wrong_type(key, value, "a string")
    return value


def _flag(metadata: Metadata, key: str) -> bool | None:
    value = metadata.get(_PREFIX + key)
    if value is not None and not isinstance(value, bool):
        raise _wrong_type(key, value, "a boolean")
    return value


def _strings(metadata: Metadata, key: str) -> list[str]:
    """Returns the array of strings; empty if there is none."""
    value = metadata.get(_PREFIX + key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong_type(key, value, "an array of strings")
    try:
        "".join(value).encode()
    except UnicodeEncodeError as error:
        raise BadTokenizer(f"{_PREFIX}{key} has an entry that is not UTF-8.") from error
    return value


def _numbers(metadata: Metadata, key: str, size: int) -> list[Any]:
    """Returns the numbers, one for each token; empty if there are none."""
    value = metadata.get(_PREFIX + key, ())
    values = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(values, list | tuple) or not all(isinstance(n, int | float) for n in values):
        raise _wrong_type(key, value, "an array of numbers")
    if len(values) not in (0, size):
        raise BadTokenizer(
            f"{_PREFIX}{key} has {len(values)} entries, but the vocabulary has {size} tokens."
        )
    return list(values)


def _bytes(metadata: Metadata, key: str) -> bytes:
    """Returns the array of bytes; empty if there is none."""
    value = metadata.get(_PREFIX + key, np.zeros(0, np.uint8))
    if not isinstance(value, np.ndarray) or value.dtype not in (np.uint8, np.int8):
        raise BadTokenizer(f"{_PREFIX}{key} is not an array of bytes.")
    return value.tobytes()


def _types(metadata: Metadata, size: int) -> tuple[TokenType, ...]:
    known = {int(type_): type_ for type_ in TokenType}
    values = _numbers(metadata, "token_type", size) or [TokenType.NORMAL] * size
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


def _infill_id(metadata: Metadata, part: str, size: int) -> int | None:
    """Returns the token of a part of fill-in-the-middle prompts; a wrong id counts as none."""
    value = metadata.get(f"{_PREFIX}fim_{part}_token_id")
    return value if isinstance(value, int) and 0 <= value < size else None


def _wrong_type(key: str, value: object, wanted: str) -> BadTokenizer:
    return BadTokenizer(f"{_PREFIX}{key} is of type {type(value).__name__}, not {wanted}.")
