"""A vocabulary for models of random weights, so that they can be served: bytes, and no words."""

from __future__ import annotations

from itertools import count

import numpy as np

from tests.support.files.gguf_writer import Value

_MARKS = ("<|im_start|>", "<|im_end|>")
_CONTROL = 3
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocabulary(size: int, pre_tokenizer: str) -> dict[str, Value]:
    """Returns what a GGUF file says of a tokenizer and a chat template.

    Args:
        size: tokens, 259 or more: bytes, those that are called by their numbers, two marks.
        pre_tokenizer: its name in GGUF files.
    """
    tokens = [*byte_tokens(), *(f"<t{index}>" for index in range(256, size - 2)), *_MARKS]
    kinds = np.ones(size, np.int32)
    kinds[-len(_MARKS) :] = _CONTROL
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre_tokenizer,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [f"{tokens[0]} {tokens[1]}"],
        "tokenizer.ggml.eos_token_id": size - 1,
        "tokenizer.chat_template": _TEMPLATE,
    }


def byte_tokens() -> list[str]:
    """Returns the tokens of single bytes as a byte-level vocabulary spells them."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + index) for index in count())
    return [chr(byte) if byte in plain else next(others) for byte in range(256)]
