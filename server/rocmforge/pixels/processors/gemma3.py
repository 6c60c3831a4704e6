"""Gemma 3: a picture is scaled to one tile, whatever its shape.

Sizes and pixels are those of Transformers' `Gemma3ImageProcessor` without pan and scan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import ImageLayout, ProcessedImage
from rocmforge.pixels.processors.patches import one_tile

if TYPE_CHECKING:
    from PIL.Image import Image


def layout(width: int, height: int, config: ProcessorConfig) -> ImageLayout:
    """Returns what a picture becomes: one tile."""
    del width, height
    return ImageLayout(rows=0, columns=0, tile_rows=(config.tile_rows,))


def process(image: Image, config: ProcessorConfig) -> ProcessedImage:
    """Returns a picture as the tower takes it."""
    return one_tile(image, (config.tile, config.tile), config)
