"""A model that writes harmony, small enough to read."""

from __future__ import annotations

from functools import cache
from typing import Any

from rocmforge.gguf.tokenizer import read_templates, read_tokenizer
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls.harmony import MARKS
from tests.api import tiny

FIRST_MARK = 900

TEMPLATE = (
    "{{ '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}"
    "{% for m in messages %}"
    "{{ '<|start|>' + m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"
    "{{ '<|message|>' + m.content + '<|end|>' }}"
    "{% endfor %}"
    "{{ tools|tojson if tools }}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def metadata() -> dict[str, Any]:
    """The tiny tokenizer with harmony's marks, from 900 on, and its template."""
    data = tiny.metadata()
    for token, spelling in enumerate(MARKS, start=FIRST_MARK):
        data["tokenizer.ggml.tokens"][token] = spelling
        data["tokenizer.ggml.token_type"][token] = 3
    data["tokenizer.ggml.eos_token_id"] = mark("<|return|>")
    data["tokenizer.chat_template"] = TEMPLATE
    return data


def mark(spelling: str) -> int:
    """The token of a mark."""
    return FIRST_MARK + [*MARKS].index(spelling)


@cache
def harmony_text() -> tuple[Tokenizer, ChatTemplates]:
    """The tokenizer and the template; both are immutable."""
    data = metadata()
    tokenizer = Tokenizer(read_tokenizer(data))
    return tokenizer, ChatTemplates.compile(read_templates(data), tokenizer)
