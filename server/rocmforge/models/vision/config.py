"""Facts of models that take images.

A picture is cut into tiles, a tile into square patches. The tower, a network of its own, makes a
row of embeddings of so many patches; these rows stand in the prompt in the place of tokens.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec


class ProcessorKind(StrEnum):
    """The way in which a family scales and cuts pictures, and writes them into a prompt."""

    IDEFICS3 = "idefics3"  # Laurençon et al. 2024, arXiv:2408.12637; SmolVLM
    GEMMA3 = "gemma3"  # arXiv:2503.19786


class Resampling(IntEnum):
    """The filter with which a picture is scaled, by Pillow's numbers."""

    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3


class ProcessorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The way of a picture to a tower; plain values that any process can have."""

    kind: ProcessorKind
    tile: int  # pixels of a side of a tile
    longest_edge: int = 0  # pixels to which a picture's longer side is scaled; 0: it is a tile
    splits: bool = False  # a picture of more than one tile is cut, and scaled to one more, too
    resampling: Resampling
    patch: int  # pixels of a side of a patch
    merge: int  # patches of a side of the square that a row of embeddings is made of
    # A pixel becomes (its number * rescale - mean) / std, of its colour.
    rescale: float = 1 / 255
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches of a tile."""
        return self.tile // self.patch, self.tile // self.patch

    @property
    def tile_rows(self) -> int:
        """Rows of embeddings of a tile."""
        rows, columns = self.grid
        return (rows // self.merge) * (columns // self.merge)

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
    both_ways: bool = False  # rows of a tile see those behind them in it, too
    whole: str = ""  # text behind `begin`, before the rows of the whole picture
    part: str = ""  # the same of a tile of it, with {row} and {column}, which count from 1

    @property
    def whole_rows(self) -> int:
        """Most rows of embeddings that must be computed in one step; 0: none must."""
        return self.processor.tile_rows if self.both_ways else 0
