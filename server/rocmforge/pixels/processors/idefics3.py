"""Idefics3 and SmolVLM: a picture is scaled, cut into tiles, and scaled to one tile more.

Sizes and pixels are those of Transformers' `Idefics3ImageProcessor`; so is that a picture is scaled
twice before it is cut, with whole numbers of 0..255 between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import ImageLayout, ProcessedImage
from rocmforge.pixels.processors.patches import opaque, tile_of

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST_PIXELS: Final = 4096  # of a side


def layout(width: int, height: int, config: ProcessorConfig) -> ImageLayout:
    """Returns what a picture becomes."""
    columns, rows = _tiles(*_scaled(width, height, config.longest_edge), config)
    return ImageLayout(
        rows=rows, columns=columns, tile_rows=(config.tile_rows,) * (rows * columns + 1)
    )


def process(image: Image, config: ProcessorConfig) -> ProcessedImage:
    """Returns a picture as the tower takes it: its tiles row by row, then the whole."""
    side, found = config.tile, layout(image.width, image.height, config)
    size = _scaled(image.width, image.height, config.longest_edge)
    image = opaque(image).resize(size, config.resampling)
    tiles = []
    if found.rows:
        image = image.resize((found.columns * side, found.rows * side), config.resampling)
        corners = [(x * side, y * side) for y in range(found.rows) for x in range(found.columns)]
        pixels = np.asarray(image)
        tiles = [tile_of(pixels[y : y + side, x : x + side], config) for x, y in corners]
    whole = np.asarray(image.resize((side, side), config.resampling))
    return ProcessedImage(layout=found, tiles=(*tiles, tile_of(whole, config)))


def _scaled(width: int, height: int, longest: int) -> tuple[int, int]:
    """Returns the size whose longer side is given; the other one is even."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        width, height = int(longest * ratio), longest
        width += width % 2
    width, height, ratio = max(width, 1), max(height, 1), max(width, 1) / max(height, 1)
    if width >= height and width > _MOST_PIXELS:
        width, height = _MOST_PIXELS, int(_MOST_PIXELS / ratio)
    elif height > width and height > _MOST_PIXELS:
        width, height = int(_MOST_PIXELS * ratio), _MOST_PIXELS
    return max(width, 1), max(height, 1)


def _tiles(width: int, height: int, config: ProcessorConfig) -> tuple[int, int]:
    """Returns the columns and rows of tiles that a scaled picture is cut into; 0: it is not."""
    if not config.splits:
        return 0, 0
    side, ratio = config.tile, width / height
    if width >= height:
        width = -(-width // side) * side
        height = int(width / ratio)
    else:
        height = -(-height // side) * side
        width = int(height * ratio)
    columns, rows = -(-width // side), -(-height // side)
    return (columns, rows) if columns > 1 or rows > 1 else (0, 0)
