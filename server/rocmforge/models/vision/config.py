"""Facts of models that take images.

A picture is cut into tiles, a tile into square patches. The tower, a network of its own, makes a
row of embeddings of so many patches; these rows stand in the prompt in the place of tokens.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from math import isqrt
from typing import Final

import msgspec

MOST_STRETCHED: Final = 200
"""The longer side of a picture that keeps its shape, by its shorter one."""


class ProcessorKind(StrEnum):
    """The way in which a family scales and cuts pictures, and writes them into a prompt."""

    IDEFICS3 = "idefics3"  # Laurençon et al. 2024, arXiv:2408.12637; SmolVLM
    INTERNVL = "internvl"  # Chen et al. 2024, arXiv:2404.16821
    GEMMA3 = "gemma3"  # arXiv:2503.19786
    GEMMA4 = "gemma4"  # pictures keep their shape, and are enlarged, too
    PIXTRAL = "pixtral"  # Agrawal et al. 2024, arXiv:2410.07073; Mistral Small 3.1
    QWEN_VL = "qwen_vl"  # Wang et al. 2024, arXiv:2409.12191: pictures keep their shape


class Resampling(IntEnum):
    """The filter with which a picture is scaled, by Pillow's numbers."""

    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3


class ProcessorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The way of a picture to a tower; plain values that any process can have."""

    kind: ProcessorKind
    tile: int = 0  # pixels of a side of a tile; 0: a tile has the shape of its picture
    # Pixels of a tile that has the shape of its picture.
    least_pixels: int = 0
    most_pixels: int = 0
    most_rows: int = 0  # of embeddings of such a tile, if they are the limit
    # Pixels to which a picture's longer side is scaled, or, of a tile that has the shape of its
    # picture, the most of a side; 0: it is a tile, or the pixels above are the limit.
    longest_edge: int = 0
    splits: bool = False  # a picture of more than one tile is cut, and scaled to one more, too
    # Tiles that a picture is cut into, where its shape says how many; 0: its size does.
    least_tiles: int = 0
    most_tiles: int = 0
    resampling: Resampling
    patch: int  # pixels of a side of a patch
    merge: int  # patches of a side of the square that a row of embeddings is made of
    # Of a side of the square that the tower's table of positions is for, between which patches lie;
    # 0: each patch has a row of its own.
    places: int = 0
    # Then it has so many rows for columns of patches, and as many for rows: a patch has the sum.
    adds_places: bool = False
    has_class: bool = False  # behind the patches of a tile, the tower reads one that is zeros
    # Rows of embeddings of a side of the windows of a tile: squares within which patches see each
    # other in some layers of the tower; 0: there are none.
    window: int = 0
    has_axes: bool = False  # to the model, rows of embeddings have rows and columns
    # A pixel becomes (its number * rescale - mean) / std, of its colour.
    rescale: float = 1 / 255
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches of a tile whose size is given."""
        return self.tile // self.patch, self.tile // self.patch

    @property
    def tile_rows(self) -> int:
        """Rows of embeddings of a tile whose size is given."""
        return self.rows_of(self.grid)

    @property
    def most_patches(self) -> int:
        """Patches of the largest tile."""
        if self.tile:
            return self.grid[0] * self.grid[1]
        if self.most_rows:
            return self.most_rows * self.merge * self.merge
        if self.longest_edge:
            return (-(-self.longest_edge // (self.patch * self.merge)) * self.merge) ** 2
        # Sides are whole numbers of these; a picture is 200 times as wide as it is high, at most.
        unit, least, most = self.patch * self.merge, self.least_pixels, self.most_pixels
        narrow = unit * isqrt(MOST_STRETCHED * most)
        enlarged = least + unit * isqrt((MOST_STRETCHED + 3) * least) + unit * unit
        return max(most, narrow, enlarged) // (self.patch * self.patch)

    def rows_of(self, grid: tuple[int, int]) -> int:
        """Returns the rows of embeddings of a tile of so many rows and columns of patches."""
        return (grid[0] // self.merge) * (grid[1] // self.merge)

    def takes(self, grid: tuple[int, int]) -> bool:
        """Returns whether a tile may have so many rows and columns of patches."""
        if self.tile:
            return grid == self.grid
        rows, columns = grid
        is_whole = not (rows % self.merge or columns % self.merge)
        return is_whole and min(grid) > 0 and rows * columns <= self.most_patches

    @property
    def patch_features(self) -> int:
        """Numbers of a patch: those of each of three colours, from its top row to its last."""
        return 3 * self.patch * self.patch


class VisionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The use of images by a model, beside the tower itself."""

    processor: ProcessorConfig
    placeholder: int  # id of the token that the history of a sequence shows for a row
    marker: str  # what a chat template writes for a picture; `expand` says what takes its place
    begin: str  # text before the rows of a tile
    end: str  # text behind the rows of the last one
    between: str = ""  # text between the lines of rows of a tile
    both_ways: bool = False  # rows of a tile see those behind them in it, too
    whole: str = ""  # text behind `begin`, before the rows of the whole picture
    # The same of a tile of it, with {row} and {column}, which count from 1. Without it, rows of all
    # tiles follow each other.
    part: str = ""

    @property
    def whole_rows(self) -> int:
        """Most rows of embeddings that must be computed in one step; 0: none must."""
        processor = self.processor
        return processor.most_patches // processor.merge**2 if self.both_ways else 0
