"""InternVL: a picture is scaled to a grid of tiles of about its shape, and to one tile more.

Sizes and pixels are those of Transformers' `GotOcr2ImageProcessor`, as `InternVLProcessor` calls
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import ImageLayout, ProcessedImage
from rocmforge.pixels.processors.patches import opaque, tile_of

if TYPE_CHECKING:
    from PIL.Image import Image


def layout(width: int, height: int, config: ProcessorConfig) -> ImageLayout:
    """Returns what a picture becomes: one tile, or a grid of them and the whole."""
    columns, rows = _grid(width, height, config)
    count = columns * rows
    if count == 1:
        return ImageLayout(rows=0, columns=0, tile_rows=(config.tile_rows,))
    return ImageLayout(rows=rows, columns=columns, tile_rows=(config.tile_rows,) * (count + 1))


def process(image: Image, config: ProcessorConfig) -> ProcessedImage:
    """Returns a picture as the tower takes it: its tiles row by row, then the whole."""
    side, found = config.tile, layout(image.width, image.height, config)
    image = opaque(image)
    size = found.columns * side, found.rows * side
    pixels = np.asarray(image.resize(size, config.resampling)) if found.rows else None
    tiles = []
    for index in range(found.rows * found.columns):
        assert pixels is not None
        y, x = (part * side for part in divmod(index, found.columns))
        tiles.append(tile_of(pixels[y : y + side, x : x + side], config))
    whole = np.asarray(image.resize((side, side), config.resampling))
    return ProcessedImage(layout=found, tiles=(*tiles, tile_of(whole, config)))


def _grid(width: int, height: int, config: ProcessorConfig) -> tuple[int, int]:
    """Returns the columns and rows whose shape is nearest to the picture's.

    Of those that are equally near, the one of the most tiles is taken of which it fills a half.
    """
    if not config.splits:
        return 1, 1
    least, most = config.least_tiles, config.most_tiles
    sides = range(1, most + 1)
    grids = [(columns, rows) for columns in sides for rows in sides]
    best, smallest = (1, 1), float("inf")
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        if not least <= columns * rows <= most:
            continue
        difference = abs(width / height - columns / rows)
        is_filled = width * height > config.tile**2 * columns * rows / 2
        if difference < smallest or (difference == smallest and is_filled):
            best, smallest = (columns, rows), difference
    return best
