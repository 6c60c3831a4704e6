"""Byte-level BPE and its SentencePiece-spelled sibling, built on `tokenizers`."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.errors import BadTokenizer
from rocmforge.text.tokenizer.pretokenizers import PreTokenizer
from rocmforge.text.tokenizer.vocabulary import Vocabulary

_TEXT_TYPES = (TokenType.NORMAL, TokenType.UNUSED, TokenType.UNDEFINED, TokenType.BYTE)


def build(vocabulary: Vocabulary, raw_merges: Sequence[str], rules: PreTokenizer) -> Tokenizer:
    """Build the model for `tokenizer.ggml.model` = gpt2 (or gemma4).

    Control and user-defined tokens are left out of it: they are found before text gets here, and
    nothing that is merged from text can become one.

    Args:
        vocabulary: The tokens.
        raw_merges: As `TokenizerData.merges`.
        rules: How text is cut.

    Raises:
        BadTokenizer: there are no merges, or not all bytes have tokens.
    """
    if not raw_merges:
        raise BadTokenizer(
            "The BPE vocabulary has no merges (tokenizer.ggml.merges of a GGUF file)."
        )
    if rules.sentencepiece:
        vocabulary.check_byte_tokens()
    ids = {
        token: index
        for index, token in enumerate(vocabulary.tokens)
        if vocabulary.types[index] in _TEXT_TYPES
    }
    merges = []
    for merge in raw_merges:
        space = merge.find(" ", 1)
        left, right = merge[:space], merge[space + 1 :]
        if left in ids and right in ids and left + right in ids:
            merges.append((left, right))
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=merges,
            ignore_merges=rules.whole_words,
            byte_fallback=rules.sentencepiece,
        )
    )
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rules.patterns
    ]
    if rules.sentencepiece:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    else:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


def _byte_of_character() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


# GPT-2's printable stand-in for each byte, as a map back to the byte.
# Source: `bytes_to_unicode` in https://github.com/openai/gpt-2/blob/master/src/encoder.py.
_BYTE_OF_CHARACTER = _byte_of_character()


def piece_bytes(token: str, type_: TokenType = TokenType.NORMAL) -> bytes:
    """Returns the bytes that a token of a byte-level vocabulary stands for, whatever its type."""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        # Some converters store added tokens as they are, without marking them so.
        return token.encode()
