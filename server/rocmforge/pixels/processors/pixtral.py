"""Pixtral and Mistral 3: a picture keeps its shape, and is never enlarged but to whole squares.

Sizes and pixels are those of Transformers' `PixtralImageProcessor`, as `PixtralProcessor` calls it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rocmforge.errors import InvalidParameter
from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import ImageLayout, ProcessedImage
from rocmforge.pixels.processors.patches import layout_of_one, one_tile

if TYPE_CHECKING:
    from PIL.Image import Image


def layout(width: int, height: int, config: ProcessorConfig) -> ImageLayout:
    """Returns what a picture becomes: one tile of its shape.

    Raises:
        InvalidParameter: It is so long that nothing is left of its width, or the other way round.
    """
    return layout_of_one(_scaled(width, height, config), config)


def process(image: Image, config: ProcessorConfig) -> ProcessedImage:
    """Returns a picture as the tower takes it."""
    return one_tile(image, _scaled(*image.size, config), config)


def _scaled(width: int, height: int, config: ProcessorConfig) -> tuple[int, int]:
    """Returns a size whose sides are whole squares; the longer one is no longer than may be."""
    unit, sides = config.patch * config.merge, (width, height)
    if (ratio := max(sides) / config.longest_edge) > 1:
        sides = math.floor(width / ratio), math.floor(height / ratio)
    if not min(sides):
        raise InvalidParameter(
            f"has {width} x {height} pixels: scaled to {config.longest_edge} of the longer side, "
            "the other one has none"
        )
    return -(-sides[0] // unit) * unit, -(-sides[1] // unit) * unit
