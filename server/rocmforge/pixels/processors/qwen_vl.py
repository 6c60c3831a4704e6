"""Qwen: a picture keeps its shape, and is scaled to whole squares of patches.

Sizes and pixels are those of Transformers' `Qwen2VLImageProcessor`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rocmforge.errors import InvalidParameter
from rocmforge.models.vision.config import MOST_STRETCHED, ProcessorConfig
from rocmforge.models.vision.image import ImageLayout, ProcessedImage
from rocmforge.pixels.processors.patches import layout_of_one, one_tile

if TYPE_CHECKING:
    from PIL.Image import Image


def layout(width: int, height: int, config: ProcessorConfig) -> ImageLayout:
    """Returns what a picture becomes: one tile of its shape.

    Raises:
        InvalidParameter: It is too long for its width, or the other way round.
    """
    return layout_of_one(_scaled(width, height, config), config)


def process(image: Image, config: ProcessorConfig) -> ProcessedImage:
    """Returns a picture as the tower takes it."""
    return one_tile(image, _scaled(*image.size, config), config)


def _scaled(width: int, height: int, config: ProcessorConfig) -> tuple[int, int]:
    """Returns a size within the limits whose sides are whole squares, of about the same shape."""
    if max(width, height) > MOST_STRETCHED * min(width, height):
        raise InvalidParameter(
            f"has {width} x {height} pixels: one side is more than {MOST_STRETCHED} times the other"
        )
    unit, least, most = config.patch * config.merge, config.least_pixels, config.most_pixels
    sides = width, height
    found = [round(side / unit) * unit for side in sides]
    if found[0] * found[1] > most:
        factor = math.sqrt(width * height / most)
        found = [max(unit, math.floor(side / factor / unit) * unit) for side in sides]
    elif found[0] * found[1] < least:
        factor = math.sqrt(least / (width * height))
        found = [math.ceil(side * factor / unit) * unit for side in sides]
    return found[0], found[1]
