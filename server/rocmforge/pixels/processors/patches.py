"""Pixels in the order in which towers take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import ImageLayout, ImageTile, ProcessedImage

if TYPE_CHECKING:
    from PIL.Image import Image


def opaque(image: Image) -> Image:
    """Returns a picture in RGB, on white where one sees through it."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = image.copy()
    white.paste((255, 255, 255, 255), (0, 0, *image.size))
    white.alpha_composite(image)
    return white.convert("RGB")


def tile_of(pixels: npt.NDArray[np.uint8], config: ProcessorConfig) -> ImageTile:
    """Returns the patches of a tile, [height, width, 3]; pixels beyond the last are left out."""
    side, merge = config.patch, config.merge
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    kept = pixels[: rows * side, : columns * side]
    squares = kept.reshape(rows // merge, merge, side, columns // merge, merge, side, 3)
    patches = np.ascontiguousarray(squares.transpose(0, 3, 1, 4, 6, 2, 5))
    return ImageTile(
        patches=patches.tobytes(),
        grid=(rows, columns),
        num_rows=(rows // merge) * (columns // merge),
    )


def layout_of_one(size: tuple[int, int], config: ProcessorConfig) -> ImageLayout:
    """Returns what a picture becomes that is scaled to one tile, (width, height) pixels large."""
    columns, rows = (side // config.patch for side in size)
    return ImageLayout(rows=0, columns=0, tile_rows=(config.rows_of((rows, columns)),))


def one_tile(image: Image, size: tuple[int, int], config: ProcessorConfig) -> ProcessedImage:
    """Scales a picture to one tile, (width, height) pixels large."""
    scaled = np.asarray(opaque(image).resize(size, config.resampling))
    return ProcessedImage(layout=layout_of_one(size, config), tiles=(tile_of(scaled, config),))
