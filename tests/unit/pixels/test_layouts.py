"""The tiles and rows of pictures, known from their sizes alone."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rocmforge.errors import InvalidParameter
from rocmforge.models.vision.config import (
    ProcessorConfig,
    ProcessorKind,
    Resampling,
    VisionConfig,
)
from rocmforge.models.vision.image import (
    TileRows,
    between_places,
    expand,
    normalised,
    patch_axes,
    patch_positions,
    window_order,
)
from rocmforge.pixels.processors.processing import layout

SMOLVLM = ProcessorConfig(
    kind=ProcessorKind.IDEFICS3,
    tile=512,
    longest_edge=2048,
    splits=True,
    resampling=Resampling.LANCZOS,
    patch=16,
    merge=4,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)
VISION = VisionConfig(
    processor=SMOLVLM,
    placeholder=7,
    marker="<image>",
    begin="<around>",
    end="<around>",
    whole="<whole>",
    part="<row_{row}_col_{column}>",
)


@pytest.mark.parametrize(
    ("width", "height", "rows", "columns"),
    [(640, 480, 3, 4), (480, 640, 4, 3), (1, 1, 4, 4), (3000, 10, 1, 4), (1, 5000, 4, 1)],
)
def test_a_picture_of_smolvlm_is_scaled_and_cut(
    width: int, height: int, rows: int, columns: int
) -> None:
    found = layout(width, height, SMOLVLM)
    assert (found.rows, found.columns) == (rows, columns)
    assert found.tile_rows == (64,) * (rows * columns + 1)


def test_tiles_are_written_row_by_row_and_the_whole_behind_them() -> None:
    found = expand(layout(3000, 1600, SMOLVLM), VISION)
    assert "".join(each if isinstance(each, str) else f"[{each.tile}]" for each in found) == (
        "<around><row_1_col_1>[0]<around><row_1_col_2>[1]<around><row_1_col_3>[2]"
        "<around><row_1_col_4>[3]\n<around><row_2_col_1>[4]<around><row_2_col_2>[5]"
        "<around><row_2_col_3>[6]<around><row_2_col_4>[7]\n<around><row_3_col_1>[8]"
        "<around><row_3_col_2>[9]<around><row_3_col_3>[10]<around><row_3_col_4>[11]\n"
        "\n<around><whole>[12]<around>"
    )


def test_a_picture_that_is_not_cut_is_written_alone() -> None:
    whole = msgspec.structs.replace(SMOLVLM, splits=False)
    found = expand(layout(640, 480, whole), VISION)
    assert found == ("<around><whole>", TileRows(0, 64), "<around>")


def test_patches_of_a_square_follow_each_other() -> None:
    assert patch_positions((4, 4), 2).tolist() == [
        *(0, 1, 4, 5),
        *(2, 3, 6, 7),
        *(8, 9, 12, 13),
        *(10, 11, 14, 15),
    ]


def test_windows_of_a_tile_follow_each_other_as_in_transformers() -> None:
    """Of three times five rows of embeddings; `get_vision_window_index` gave these."""
    order, begins = window_order((6, 10), 2, 2)
    assert order.tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]
    assert begins.tolist() == [0, 16, 32, 40, 48, 56, 60]


def test_pixels_are_scaled_and_normed_by_colour() -> None:
    config = ProcessorConfig(
        kind=ProcessorKind.GEMMA3,
        tile=2,
        resampling=Resampling.BILINEAR,
        patch=2,
        merge=1,
        mean=(0.5, 0.25, 0.0),
        std=(0.5, 0.25, 1.0),
    )
    patches = bytes([0, 0, 255, 255, 0, 0, 0, 255, 0, 0, 255, 255])
    found = normalised(patches, config)
    np.testing.assert_allclose(
        found, [[-1, -1, 1, 1, -1, -1, -1, 3, 0, 0, 1, 1]], rtol=0, atol=1e-6
    )


QWEN = ProcessorConfig(
    kind=ProcessorKind.QWEN_VL,
    least_pixels=65_536,
    most_pixels=16_777_216,
    resampling=Resampling.BICUBIC,
    patch=16,
    merge=2,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)


@pytest.mark.parametrize(
    ("width", "height", "rows"),
    [(1024, 1024, 1024), (640, 480, 300), (10, 10, 64), (8192, 8192, 16384), (200, 1, 114)],
)
def test_a_picture_of_qwen_keeps_its_shape(width: int, height: int, rows: int) -> None:
    found = layout(width, height, QWEN)
    assert (found.rows, found.columns, found.tile_rows) == (0, 0, (rows,))


def test_a_picture_that_is_a_line_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="more than 200 times"):
        layout(201, 1, QWEN)


@pytest.mark.parametrize(("least", "most"), [(65_536, 16_777_216), (1_000, 1_100), (900, 5_000)])
def test_no_picture_has_more_patches_than_there_may_be(least: int, most: int) -> None:
    config = msgspec.structs.replace(QWEN, least_pixels=least, most_pixels=most)
    rng = np.random.default_rng(1)
    for width in (1, 2, 31, 33, 300, *rng.integers(1, 16_384, 50).tolist()):
        for height in (width, -(-width // 200), 200 * width):
            rows = layout(width, height, config).num_rows
            assert 4 * rows <= config.most_patches, (width, height)


def test_patches_lie_between_the_places_of_a_table_as_interpolation_has_it() -> None:
    grid, side = (4, 6), 5
    table = np.random.default_rng(2).random((side, side))
    axes = patch_axes(grid, 2)
    assert axes[:6].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3]]
    ids, shares = between_places(axes, grid, side)
    found = (table.reshape(-1)[ids] * shares).sum(axis=1)
    down, right = (np.linspace(0, side - 1, count) for count in grid)
    places = np.arange(side)
    by_column = np.array([np.interp(right, places, row) for row in table])
    expected = np.array([np.interp(down, places, column) for column in by_column.T]).T
    np.testing.assert_allclose(found, expected[axes[:, 0], axes[:, 1]], rtol=0, atol=1e-6)
