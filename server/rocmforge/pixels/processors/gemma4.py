"""Gemma 4: a picture keeps its shape, and has about as many patches whatever its size.

Sizes and pixels are those of Transformers' `Gemma4ImageProcessor`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import ImageLayout, ProcessedImage
from rocmforge.pixels.processors.patches import layout_of_one, one_tile

if TYPE_CHECKING:
    from PIL.Image import Image


def layout(width: int, height: int, config: ProcessorConfig) -> ImageLayout:
    """Returns what a picture becomes: one tile of its shape."""
    return layout_of_one(_scaled(width, height, config), config)


def process(image: Image, config: ProcessorConfig) -> ProcessedImage:
    """Returns a picture as the tower takes it."""
    return one_tile(image, _scaled(*image.size, config), config)


def _scaled(width: int, height: int, config: ProcessorConfig) -> tuple[int, int]:
    """Returns the largest size of the same shape, with sides rounded down to whole squares.

    A side that would have none has one. The other one is then a square for each time that it is as
    long, as far as there may be so many.
    """
    unit, most = config.patch * config.merge, config.most_rows
    factor = math.sqrt(config.most_patches * config.patch**2 / (width * height))
    across, down = (math.floor(factor * side / unit) for side in (width, height))
    if not down:
        across, down = min(width // height, most), 1
    elif not across:
        across, down = 1, min(height // width, most)
    return across * unit, down * unit
