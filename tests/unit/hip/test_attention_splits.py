"""How contexts of decodes are cut into splits for attention."""

from __future__ import annotations

import pytest

from rocmforge_hip.ops.geometry import Geometry

DEVICE = Geometry(132)


@pytest.mark.parametrize(
    ("context", "blocks", "sequences", "whole"),
    [
        (256, 8, 1, True),
        (256, 2, 5, True),
        (257, 8, 8, False),
        (1024, 8, 8, False),
        (1024, 8, 13, True),
        (1025, 8, 16, False),
        (2048, 8, 29, True),
        (2049, 8, 32, False),
    ],
)
def test_a_context_is_whole_where_its_blocks_do_enough_besides(
    context: int, blocks: int, sequences: int, whole: bool
) -> None:
    split = DEVICE.attention(context, None, blocks, sequences, blocks_per_cu=3)
    assert (split.count == 1) == whole
    assert split.count * split.tokens >= context


def test_what_a_window_hides_does_not_count() -> None:
    assert DEVICE.attention(100_000, 128, 8, 1).count == 1
    assert DEVICE.attention(100_000, 1024, 8, 1).count > 1
