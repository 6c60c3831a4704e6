"""Makes the goldens of this folder from llama.cpp's own tokenizer and Transformers' renderer.

    python -m tests.data.text.make_goldens VENDOR_LLAMA_CPP SMOLLM2.gguf GEMMA3.gguf

Needs `llama-cpp-python` and `transformers`, which the tests do not: they compare digests with what
ROCmForge computes. The first argument is the folder `vendor/llama.cpp` of llama-cpp-python's sdist.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NOW = datetime(2026, 7, 26, 12, 0, 0)
SPECIAL_TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
TEXTS = 80

_FRAGMENTS = (
    "a b e n t th ing 0 1 42 123456 . , ! ? 's 'S 're 'll don't ( ) [ ] { } < > / | _ - -- == \" `",
    "é ñ ß Ü İ ſ дом при 的 中文 日本語 カタカナ 한국어 😀 👩‍👩‍👧 🏳️‍🌈 हिन्दी ไทย العربية",
    "½ ² Ⅷ ٣ १ ٪ € … — “ ”",
    "ǅ ﬁ Ａ A B HELLO World camelCase snake_case https://x.y/z?q=1 &amp; </s> <s> <unk> <0x41>",
    "▁ ▁▁ 𝓐 𐐀 <|im_start|> <|im_end|> <|endoftext|> <bos> <eos> <start_of_turn> <h1> <table>",
    "[INST] <|eot_id|> <|begin_of_text|> <pad> <mask> <|assistant|> <fim_prefix>",
)
_BLANKS = ["  ", "   ", "\n", "\n\n", "\t", "\r\n", " ", " the", "\u00a0", "\u2003", "\u3000"]
_ODD = ["\u200b", "\ufeff", "\0", "\1", "\x7f", "\x85", "\u2028", "e\u0301", "\u0300"]
_RANGES = (
    (0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x5FF), (0x900, 0xD7FF), (0xE000, 0xFFFF),
    (0x10000, 0x1FFFF),
)  # fmt: skip


def texts() -> Iterator[str]:
    """Texts that tokenizers find hard, the same ones on every call."""
    rng = random.Random(20260726)
    pool = " ".join(_FRAGMENTS).split() + _BLANKS * 3 + _ODD
    for _ in range(TEXTS):
        count = rng.choice([1, 2, 3, 5, 8, 13, 30])
        if rng.random() < 0.2:
            yield "".join(chr(rng.randint(*rng.choice(_RANGES))) for _ in range(count))
            continue
        parts = [rng.choice(pool) for _ in range(count)]
        yield "".join(p * (rng.randint(2, 40) if rng.random() < 0.15 else 1) for p in parts)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The city"},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                },
                "required": ["city"],
            },
        },
    }
]
_HELLO = {"role": "user", "content": "Hi"}
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Paris", "unit": "c"}},
}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "user": ([{"role": "user", "content": "Hello!"}], {}),
    "system": (
        [
            {"role": "system", "content": "Be terse."},
            {"role": "user", "content": "  What is 2+2? <b>&amp;</b> é 😀\n"},
        ],
        {},
    ),
    "multi": ([_HELLO, {"role": "assistant", "content": "Hello?"}, _HELLO], {}),
    "thought": (
        [_HELLO, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"}, _HELLO],
        {},
    ),
    "reasoning": (
        [_HELLO, {"role": "assistant", "content": "Hello", "reasoning_content": "hm"}, _HELLO],
        {},
    ),
    "tools": ([_HELLO], {"tools": TOOLS}),
    "call": (
        [
            _HELLO,
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {
                "role": "tool",
                "tool_call_id": "call00001",
                "name": "get_weather",
                "content": '{"t": 20}',
            },
        ],
        {"tools": TOOLS},
    ),
    "answered": (
        [_HELLO, {"role": "assistant", "content": "Hello"}],
        {"add_generation_prompt": False},
    ),
    "thinking": ([_HELLO], {"enable_thinking": True}),
}


def digest(value: object) -> str:
    """A short digest of a text or a list of ids."""
    return sha256(json.dumps(value).encode()).hexdigest()[:8]


def _token_digests(path: Path) -> dict[str, object]:
    llama_cpp: Any = import_module("llama_cpp")
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    count = model.n_vocab()
    modes = {
        "plain": {"add_bos": False, "special": False},
        "special": {"add_bos": False, "special": True},
        "bos": {"add_bos": True, "special": True},
    }
    encoded: Mapping[str, list[str]] = {
        name: [digest(model.tokenize(text.encode(), **mode)) for text in texts()]
        for name, mode in modes.items()
    }
    ends = [
        index for index in range(count) if llama_cpp.llama_vocab_is_eog(model._model.vocab, index)
    ]
    return {**encoded, "end_of_generation": ends}


def _renderings(source: str) -> dict[str, str | None]:
    """Digest of each conversation's rendering; None where Transformers cannot render it."""
    renderer: Any = import_module("transformers.utils.chat_template_utils")

    class FixedDate(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return NOW

    renderer.datetime = FixedDate
    rendered: dict[str, str | None] = {}
    for name, (messages, variables) in CONVERSATIONS.items():
        arguments = {"add_generation_prompt": True, **variables, **SPECIAL_TOKENS}
        try:
            (text,), _ = renderer.render_jinja_template(
                [messages], chat_template=source, **arguments
            )
        except Exception:  # whatever it is: this template cannot render this conversation
            rendered[name] = None
        else:
            rendered[name] = digest(text)
    return rendered


def main(llama_cpp: Path, *models: Path) -> None:
    """Write `tokens.json` and `templates.json`."""
    vocabularies = [
        path
        for path in sorted((llama_cpp / "models").glob("ggml-vocab-*.gguf"))
        if "bert" not in path.name  # see make_encoder_goldens
    ]
    tokens = {path.name: _token_digests(path) for path in (*models, *vocabularies)}
    templates = {
        path.name: _renderings(path.read_text(encoding="utf-8"))
        for path in sorted((llama_cpp / "models" / "templates").glob("*.jinja"))
    }
    for name, content in (("tokens", tokens), ("templates", templates)):
        (HERE / f"{name}.json").write_text(json.dumps(content, indent=0) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
