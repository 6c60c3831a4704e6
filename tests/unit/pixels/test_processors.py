"""Processors against those of Transformers, on pictures of odd sizes and modes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.errors import InvalidParameter
from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import ImageTile, normalised, patch_positions
from rocmforge.pixels.processors.processing import layout, process
from tests.data.models.towers.pictures import COUNT, goldens, picture, sampled


def pixels_of(tile: ImageTile, config: ProcessorConfig) -> npt.NDArray[np.float64]:
    """The pixels of a tile, 0..255, from what a tower is given: [3, height, width]."""
    mean, std = (np.array(each)[:, None] for each in (config.mean, config.std))
    rows, columns = tile.grid
    patches = normalised(tile.patches, config).reshape(rows * columns, 3, -1)
    whole = np.empty((rows * columns, 3, config.patch, config.patch))
    whole[patch_positions(tile.grid, config.merge)] = (patches * std + mean).reshape(whole.shape)
    squares = whole.reshape(rows, columns, 3, config.patch, config.patch)
    height, width = rows * config.patch, columns * config.patch
    return 255 * squares.transpose(2, 0, 3, 1, 4).reshape(3, height, width)


def test_pictures_become_what_they_become_in_transformers() -> None:
    """Sizes and numbers are equal, and no pixel differs by more than 1 of 255."""
    for number, golden in zip(range(COUNT), goldens(), strict=True):
        image, config = picture(number)
        before = image.copy()
        about = f"picture {number}, {image.size} of {image.mode}"
        if golden is None:
            with pytest.raises(InvalidParameter):
                process(image, config)
            continue
        found = process(image, config)
        assert found.layout == layout(*image.size, config), about
        shape = [found.layout.rows, found.layout.columns, len(found.tiles)]
        if not config.tile:
            shape[:2] = found.tiles[0].grid
            assert config.takes(found.tiles[0].grid), about
        assert shape == golden[:3], about
        assert found.layout.tile_rows == tuple(tile.num_rows for tile in found.tiles), about
        tiles = np.stack([pixels_of(tile, config) for tile in found.tiles])
        differences = np.abs(np.array(sampled(number, tiles)) - golden[3:])
        assert differences.max() <= 1, about
        assert image.tobytes() == before.tobytes(), "the picture itself stays as it is"
