"""Small `tokenizer.json` files of each kind, trained on a page of text by the library itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT: Final = (
    "The quick brown fox jumps over the lazy dog, and the cat sat on the mat. "
    "Numbers like 2024, 17 and 3.14159 are cut into digits; words are not. "
    "Grüße aus Köln, naïve café, 東京は大きい。 Don't they're I'll we've. " * 3
)
_QWEN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES: Final = [f"<0x{byte:02X}>" for byte in range(256)]


def _special(*texts: str) -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False) for text in texts]


def byte_level() -> Tokenizer:
    """As Qwen2, with chat markers, a token that is plain vocabulary, and BOS in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens(_special("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A",
        special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))],
    )
    return tokenizer


def _sentencepiece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *_BYTES], show_progress=False
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator([TEXT], trainer)
    # Byte tokens are no special ones; the trainer has no other way to get them.
    values = json.loads(tokenizer.to_str())
    values["added_tokens"] = values["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(values))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def llama_2() -> Tokenizer:
    """As Llama 2: a space is put before every text, also behind a special token."""
    tokenizer = _sentencepiece()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.pre_tokenizer = None
    return tokenizer


def mistral() -> Tokenizer:
    """As Mistral: a space is put before the first word of a prompt only; `</s>` takes spaces."""
    tokenizer = _sentencepiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens(
        [AddedToken("[INST]", special=True, normalized=False, rstrip=True)]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT without case."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=names, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_truncation(16)  # as sentence-transformers leave it: the server has its own
    return tokenizer


def unigram() -> Tokenizer:
    """As XLM-RoBERTa, with two separators between texts."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=names, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


KINDS: Final[Mapping[str, Callable[[], Tokenizer]]] = MappingProxyType(
    {
        "byte level": byte_level,
        "Llama 2": llama_2,
        "Mistral": mistral,
        "WordPiece": word_piece,
        "unigram": unigram,
    }
)


def write_tokenizer(folder: Path, tokenizer: Tokenizer, **config: Any) -> None:
    """Writes `tokenizer.json` and a `tokenizer_config.json` with these values."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def pieces(vocabulary: Sequence[str]) -> Tokenizer:
    """As BERT, with a vocabulary as GGUF spells it: `▁word` begins a word, `ing` goes on."""
    names = [
        token if token.startswith("[") else token[1:] if token.startswith("▁") else f"##{token}"
        for token in vocabulary
    ]
    ids = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(_special(*(name for name in names if name.startswith("["))))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer
