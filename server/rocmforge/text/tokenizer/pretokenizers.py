r"""Rules by which byte-level BPE vocabularies cut text into words: one table row per kind.

A kind is named by the GGUF key `tokenizer.ggml.pre`. The patterns are facts of the models'
published `tokenizer.json` files; the names and their grouping follow llama.cpp. A row's patterns
are applied one after the other, each to the pieces that the one before has left; both matches and
what lies between them become pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge.errors import BadTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"


def _llama3(digits: str) -> str:
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
    )


def _cased(contractions: str, digits: str) -> str:
    """Returns the pattern that splits words where lower case turns upper (the o200k family)."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{upper}*{lower}+{contractions}|{before}{upper}+{lower}*{contractions}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
    )


_QWEN2 = _llama3(r"\p{N}")
_LLAMA3 = _llama3(r"\p{N}{1,3}")
_GPT4O = _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")

_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}",
)

# Letters with an upper or lower case, as the DeepSeek LLM tokenizer lists them. Escaped are those
# that Unicode normalisation would change into others.
_DEEPSEEK_LETTERS = (
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ"
    r"ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ"
    r"\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-"
    r"𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One kind: its patterns (Oniguruma syntax) and the rules that come with it.

    Attributes:
        patterns: Applied in order; see the module's text.
        whole_words: A word that is itself a token is taken as such, whatever the merges say.
        adds_bos: Whether a prompt starts with BOS where the file does not say.
        sentencepiece: Tokens hold raw text with `▁` for the space and `<0xNN>` for odd bytes,
            instead of GPT-2's printable stand-ins for bytes.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False
    sentencepiece: bool = False


_DIGITS_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_POROLIKE = r" ?[^(\s|.,!?…。，、।۔،)]+"
_LINES = r"[^\n]+|[\n]+"

_KINDS: dict[tuple[str, ...], PreTokenizer] = {
    # No name: the file is older than the key. llama.cpp reads such files in the same way.
    ("default", ""): PreTokenizer(
        (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    ),
    (
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
    ): PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True),
    ("dbrx", "smaug-bpe", "chatglm-bpe"): PreTokenizer((_LLAMA3,)),
    ("glm4", "glm5"): PreTokenizer((_LLAMA3,), whole_words=True),
    ("minicpm5",): PreTokenizer((r"\p{N}{1,3}", _llama3(r"\p{N}+")), whole_words=True),
    ("deepseek-llm",): PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        ),
    ),
    ("deepseek-coder",): PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    ),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): PreTokenizer(_DEEPSEEK3),
    ("falcon",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    (
        *("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"),
        "mellum2",
    ): _DIGITS_GPT2,
    (
        *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat"),
        *("a.x-4.0", "mellum", "modern-bert", "exaone4", "jina-es", "jina-de", "jina-v2-es"),
        *("jina-v2-de", "jina-v1-en", "jina-v2-code", "roberta-bpe"),
    ): PreTokenizer((_GPT2,)),
    (
        *("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"),
        *("solar-open", "grok-2"),
    ): PreTokenizer((_QWEN2,)),
    ("qwen35",): PreTokenizer(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}",
        ),
    ),
    ("ufakzeka",): PreTokenizer((_QWEN2.removeprefix(f"{_CONTRACTIONS}|"),)),
    ("laguna",): PreTokenizer((_LINES, _QWEN2)),
    ("bailingmoe", "bailingmoe2", "llada-moe"): PreTokenizer(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            rf"|\s*[\r\n]|{_SPACES}",
        ),
    ),
    ("seed-coder",): PreTokenizer(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}"
            rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|{_SPACES}",
        ),
    ),
    ("exaone-moe",): PreTokenizer(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
            rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}",
        ),
    ),
    ("tekken",): PreTokenizer((_cased("", r"\p{N}"),), whole_words=True, adds_bos=True),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): PreTokenizer((_GPT4O,)),
    ("granite-embed-multi-97m",): PreTokenizer((_GPT4O,), whole_words=True),
    ("tiny_aya", "cohere2moe"): PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    ("youtu",): PreTokenizer(
        (
            r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
            _cased(f"{_CONTRACTIONS}?", r"\p{N}"),
        ),
        whole_words=True,
    ),
    ("superbpe",): PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    ("poro-chat", "bloom", "gpt3-finnish"): PreTokenizer((_POROLIKE,)),
    ("viking",): PreTokenizer((_POROLIKE, r"\p{N}")),
    ("chameleon",): PreTokenizer(
        (
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
    ("gemma4", "granite-embed-multi-311m"): PreTokenizer(
        (_LINES,), adds_bos=True, sentencepiece=True
    ),
    ("sarvam-moe",): PreTokenizer((_LINES,), sentencepiece=True),
}

_BY_NAME = {name: kind for names, kind in _KINDS.items() for name in names}


def pretokenizer(name: str) -> PreTokenizer:
    """Returns the row for `tokenizer.ggml.pre`.

    Raises:
        BadTokenizer: there is no such row. Guessing would silently cost quality.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise BadTokenizer(
            f"The pre-tokenizer {name!r} (tokenizer.ggml.pre of a GGUF file) is not supported. "
            f"Supported: {', '.join(known_kinds())}."
        ) from None


def known_kinds() -> tuple[str, ...]:
    """Returns the values of `tokenizer.ggml.pre` that there are rows for."""
    return tuple(sorted(name for name in _BY_NAME if name))
