"""A model that takes images, as far as the server process knows it."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.structs import replace

from rocmforge.engine.ipc.prompt import ImageSpan, Prompt, TokenSpan
from rocmforge.gguf.tokenizer import read_templates, read_tokenizer
from rocmforge.models.vision.config import ProcessorKind, VisionConfig
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api import tiny
from tests.support.files.pictures import ONE_TILE

PLACEHOLDER, AROUND = 999, 998
MARKER = "<image>"

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TILES = replace(ONE_TILE, kind=ProcessorKind.IDEFICS3, splits=True, longest_edge=2 * ONE_TILE.tile)
"""A wide picture is two tiles of one row each, and one of the whole."""

VISION = VisionConfig(
    processor=TILES,
    placeholder=PLACEHOLDER,
    marker=MARKER,
    begin="<around>",
    end="<around>",
    whole="w",
    part="r{row}c{column}",
)


@cache
def vision_text(template: str = TEMPLATE) -> tuple[Tokenizer, ChatTemplates]:
    """The tiny tokenizer with tokens for images, and a template that shows them."""
    data: dict[str, Any] = tiny.metadata()
    for index, token in ((PLACEHOLDER, MARKER), (AROUND, "<around>")):
        data["tokenizer.ggml.tokens"][index] = token
        data["tokenizer.ggml.token_type"][index] = 3
    data["tokenizer.chat_template"] = template
    tokenizer = Tokenizer(read_tokenizer(data))
    return tokenizer, ChatTemplates.compile(read_templates(data), tokenizer)


def shown(prompt: Prompt, tokenizer: Tokenizer) -> str:
    """A prompt as text, with [n] for n rows of an image."""
    texts = []
    for span in prompt.spans:
        if isinstance(span, TokenSpan):
            texts.append(tokenizer.decode(span.ids, skip_special=False))
        elif isinstance(span, ImageSpan):
            texts.append(f"[{span.num_rows}]")
    return "".join(texts)
