"""Pixtral and Mistral 3: a picture keeps its shape, and is never enlarged but to whole squares.

Sizes and pixels are those of Transformers' `PixtralImageProcessor`, as `PixtralProcessor` calls it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rocmforge.errors import InvalidParameter
from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import ImageLayout, ProcessedImage
from rocmforge.pixels.processors.patches import opaque, tile_of

if TYPE_CHECKING:
    from PIL.Image import Image


def layout(width: int, height: int, config: ProcessorConfig) -> ImageLayout:
    """Returns what a picture becomes: one tile of its shape.

    Raises:
        InvalidParameter: It is so long that nothing is left of its width, or the other way round.
    """
    columns, rows = (side // config.patch for side in _scaled(width, height, config))
    return ImageLayout(rows=0, columns=0, tile_rows=(config.rows_of((rows, columns)),))


def process(image: Image, config: ProcessorConfig) -> ProcessedImage:
    """Returns a picture as the tower takes it."""
    scaled = opaque(image).resize(_scaled(*image.size, config), config.resampling)
    return ProcessedImage(
        layout=layout(*image.size, config), tiles=(tile_of(np.asarray(scaled), config),)
    )


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
