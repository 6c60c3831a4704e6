"""A picture that is prepared for a tower, and what stands for it in a prompt."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rocmforge.models.vision.config import ProcessorConfig, VisionConfig


class ImageLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The tiles of a picture of some size: what it costs is known before it is read."""

    rows: int  # of tiles, beside that of the whole picture; 0: that is the only one
    columns: int
    tile_rows: tuple[int, ...]  # rows of embeddings of each tile, in the order of the prompt

    @property
    def num_rows(self) -> int:
        """Rows of embeddings."""
        return sum(self.tile_rows)


class ImageTile(msgspec.Struct, frozen=True, kw_only=True):
    """The patches of a tile, of which a tower makes rows of embeddings."""

    # uint8 [patches, patch_features]. Those of one row of embeddings follow each other, from the
    # top left one to the bottom right one, and so do the squares that they are.
    patches: bytes
    grid: tuple[int, int]  # rows and columns of patches
    num_rows: int  # of embeddings


class ProcessedImage(msgspec.Struct, frozen=True, kw_only=True):
    """A picture as a tower takes it."""

    layout: ImageLayout
    tiles: tuple[ImageTile, ...]  # one for each of `layout.tile_rows`


class TileRows(NamedTuple):
    """The place of a tile's rows in a prompt."""

    tile: int  # index of it
    num_rows: int


def expand(layout: ImageLayout, vision: VisionConfig) -> tuple[str | TileRows, ...]:
    """Returns what takes the place of `VisionConfig.marker` in a prompt.

    Texts are written by the model's maker: special tokens in them are such. They are to be read
    together with the text around them, up to the next rows.
    """
    found: list[str | TileRows] = []
    text, count = "", layout.rows * layout.columns
    if not vision.part:
        found += [vision.begin, *(TileRows(*each) for each in enumerate(layout.tile_rows))]
        return (*found, vision.end) if vision.end else tuple(found)
    for index in range(count):
        row, column = divmod(index, layout.columns)
        found += [
            text + vision.begin + vision.part.format(row=row + 1, column=column + 1),
            TileRows(index, layout.tile_rows[index]),
        ]
        text = "\n" if column + 1 == layout.columns else ""
    text += "\n" if count else ""
    found += [text + vision.begin + vision.whole, TileRows(count, layout.tile_rows[count])]
    return (*found, vision.end) if vision.end else tuple(found)


def normalised(patches: bytes, config: ProcessorConfig) -> npt.NDArray[np.float32]:
    """Returns patches as a tower takes them: float32 [patches, patch_features].

    Raises:
        ValueError: The bytes are not so many patches.
    """
    values = np.frombuffer(patches, np.uint8).reshape(-1, 3, config.patch * config.patch)
    mean, std = (np.array(each, np.float32)[:, None] for each in (config.mean, config.std))
    scaled = values * np.float32(config.rescale)
    scaled -= mean
    scaled /= std
    return scaled.reshape(len(values), config.patch_features)


def patch_positions(grid: tuple[int, int], merge: int) -> npt.NDArray[np.int32]:
    """Returns the place of each patch of a tile, counted row by row: [patches].

    Args:
        grid: Rows and columns of patches, which `merge` divides.
        merge: Patches of a side of the squares that follow each other.
    """
    rows, columns = grid
    places = np.arange(rows * columns, dtype=np.int32)
    squares = places.reshape(rows // merge, merge, columns // merge, merge)
    return np.ascontiguousarray(squares.transpose(0, 2, 1, 3)).reshape(-1)


def patch_axes(grid: tuple[int, int], merge: int) -> npt.NDArray[np.int32]:
    """Returns the row and column of each patch of a tile, [patches, 2]; see `patch_positions`."""
    return np.stack(np.divmod(patch_positions(grid, merge), np.int32(grid[1])), axis=1)


def window_order(
    grid: tuple[int, int], merge: int, window: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int32]]:
    """Returns the rows of embeddings of a tile by windows, and where windows begin.

    Windows follow each other from the top left one to the bottom right one, and so do the rows of
    each. Those at the right and at the bottom may be smaller.

    Args:
        grid: Rows and columns of patches, which `merge` divides.
        merge: Patches of a side of the square that a row is made of.
        window: Rows of embeddings of a side of a window.

    Returns:
        The rows, [rows], and the first patch of each window, once they are in this order, and how
        many patches there are: [windows + 1].
    """
    down, right = grid[0] // merge, grid[1] // merge
    places = np.arange(down * right).reshape(down, right)
    windows = [
        places[top : top + window, left : left + window].ravel()
        for top in range(0, down, window)
        for left in range(0, right, window)
    ]
    ends = np.cumsum([0, *map(len, windows)], dtype=np.int32) * np.int32(merge * merge)
    return np.concatenate(windows), ends


def added_places(
    axes: npt.NDArray[np.int32], side: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Returns what `between_places` does, of a table with rows for columns, then for rows.

    Args:
        axes: The row and column of each patch, [patches, 2].
        side: Rows of the table for each axis.
    """
    rows = np.zeros((len(axes), 4), np.int32)
    rows[:, 0], rows[:, 1] = axes[:, 1], axes[:, 0] + np.int32(side)
    shares = np.zeros((len(axes), 4), np.float32)
    shares[:, :2] = 1
    return rows, shares


def between_places(
    axes: npt.NDArray[np.int32], grid: tuple[int, int], side: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Returns between which rows of a table each patch lies, and how much of each is taken.

    A table is for a square of places, whose corners are those of the tile.

    Args:
        axes: The row and column of each patch, [patches, 2].
        grid: Rows and columns of patches.
        side: Places of a side of the square.

    Returns:
        The rows, [patches, 4], and the shares, [patches, 4], which add up to 1.
    """
    lengths = np.maximum(np.array(grid, np.float32) - 1, np.float32(1))
    places = axes.astype(np.float32) * np.float32(side - 1) / lengths
    first = np.floor(places).astype(np.int32)
    share = places - first.astype(np.float32)
    second = np.minimum(first + 1, side - 1)
    rows = np.stack([first[:, 0], second[:, 0]], axis=1) * np.int32(side)
    columns = np.stack([first[:, 1], second[:, 1]], axis=1)
    of_row, of_column = (np.stack([1 - share[:, i], share[:, i]], axis=1) for i in (0, 1))
    shares = (of_row[:, :, None] * of_column[:, None]).astype(np.float32)
    return (rows[:, :, None] + columns[:, None]).reshape(-1, 4), shares.reshape(-1, 4)
