"""Images that have been read, and their places in the prompt of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from rocmforge.engine.ipc.prompt import ImageSpan, Prompt, TokenSpan, image_span, token_span
from rocmforge.errors import InvalidParameter
from rocmforge.models.vision.config import VisionConfig
from rocmforge.models.vision.image import ImageLayout, ProcessedImage, expand
from rocmforge.text.template.template import RenderedPrompt
from rocmforge.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image that has been read."""

    layout: ImageLayout
    tiles: tuple[ImageSpan, ...]

    @classmethod
    def of(cls, image: ProcessedImage, vision: VisionConfig) -> PromptImage:
        """Makes the spans of an image."""
        spans = (
            image_span(tile, vision.placeholder, both_ways=vision.both_ways) for tile in image.tiles
        )
        return cls(image.layout, tuple(spans))


def prompt_with_images(
    tokenizer: Tokenizer,
    rendered: RenderedPrompt,
    vision: VisionConfig,
    images: Sequence[PromptImage],
) -> Prompt:
    """Tokenises a rendered conversation, with rows where the template shows its images.

    A marker counts where the template wrote it: one in a client's text is text.

    Raises:
        InvalidParameter: the template does not show each image once.
    """
    pieces = _cut(rendered, vision.marker)
    if len(pieces) != len(images) + 1:
        raise InvalidParameter(
            f"The conversation has {len(images)} images, but the model's chat template shows "
            f"{len(pieces) - 1}: it may take them in messages of the user only.",
            param="messages",
        )
    texts, rows = [pieces[0]], []
    breaks = tuple(tokenizer.encode(vision.between, parse_special=True, add_bos=False))
    for image, after in zip(images, pieces[1:], strict=True):
        for part in expand(image.layout, vision):
            if isinstance(part, str):
                texts[-1] = _joined(texts[-1], RenderedPrompt(part, b"\1" * len(part)))
            else:
                rows.append(_with_breaks(image.tiles[part.tile], breaks, vision))
                texts.append(RenderedPrompt("", b""))
        texts[-1] = _joined(texts[-1], after)
    encoded = tokenizer.encode_around([(text.text, text.trusts) for text in texts])
    spans: list[TokenSpan | ImageSpan] = []
    for ids, row in zip(encoded, (*rows, None), strict=True):
        if ids:
            spans.append(token_span(ids))
        if row is not None:
            spans.append(row)
    return Prompt(spans=tuple(spans))


def _with_breaks(tile: ImageSpan, breaks: tuple[int, ...], vision: VisionConfig) -> ImageSpan:
    """Returns a tile with what stands between its lines."""
    if not breaks:
        return tile
    return structs.replace(tile, lines=tile.grid[0] // vision.processor.merge, breaks=breaks)


def _cut(rendered: RenderedPrompt, marker: str) -> list[RenderedPrompt]:
    """Cuts a prompt at the markers that the template wrote."""
    pieces, begin, position = [], 0, 0
    while (start := rendered.text.find(marker, position)) >= 0:
        position = start + len(marker)
        if rendered.trusts(start, position):
            pieces.append(_slice(rendered, begin, start))
            begin = position
        else:
            position = start + 1
    return [*pieces, _slice(rendered, begin, len(rendered.text))]


def _slice(rendered: RenderedPrompt, start: int, end: int) -> RenderedPrompt:
    return RenderedPrompt(rendered.text[start:end], rendered.trust[start:end])


def _joined(first: RenderedPrompt, second: RenderedPrompt) -> RenderedPrompt:
    return RenderedPrompt(first.text + second.text, first.trust + second.trust)
