"""How rows with adapters are grouped, and how adapters are stored."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.backend.arrays import Float32Array
from rocmforge.checkpoint.formats import FORMATS
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.models.lora import LowRank
from rocmforge_hip.weights.adapters import (
    TILE,
    AdapterStack,
    StackPart,
    features_of_split,
    most_tiles,
    pack_stack,
    tile_rows,
)


@given(st.lists(st.integers(-1, 5), max_size=200))
def test_each_row_with_an_adapter_is_in_one_tile_of_that_adapter(adapters: list[int]) -> None:
    tiles, order = tile_rows(np.array(adapters, np.int32))
    found = {}
    for adapter, first, count in tiles.tolist():
        assert 0 < count <= TILE
        for row in order[first : first + count].tolist():
            assert row not in found
            found[row] = adapter
    assert found == {row: adapter for row, adapter in enumerate(adapters) if adapter >= 0}
    assert len(tiles) <= most_tiles(len(adapters), 6)


def test_rows_of_one_adapter_fill_tiles() -> None:
    assert most_tiles(64, 1) == 4
    assert len(tile_rows(np.zeros(64, np.int32))[0]) == 4
    assert most_tiles(8, 3) == 3
    assert most_tiles(2, 30) == 2


@given(st.integers(1, 2048), st.integers(1, 1000).map(lambda blocks: 32 * blocks))
def test_features_are_split_in_a_few_pieces_of_whole_quant_blocks(rows: int, features: int) -> None:
    split = features_of_split(rows, features)
    assert split % 32 == 0
    assert -(-features // split) <= (8 if rows <= 128 else 1)


def tensor(name: str, values: Float32Array) -> Tensor:
    return Tensor(name, values.shape, FORMATS["f32"], values.view(np.uint8))


@pytest.mark.parametrize(("a_size", "b_size"), [(1.0, 1.0), (1e-7, 1e6), (1e5, 1e-9), (0.0, 1.0)])
def test_values_of_any_size_survive_in_float16(a_size: float, b_size: float) -> None:
    rng = np.random.default_rng(1)
    a = (a_size * rng.standard_normal((5, 64))).astype(np.float32)
    b = (b_size * rng.standard_normal((32, 5))).astype(np.float32)
    low_rank = LowRank(tensor("a", a), tensor("b", b), 0.75, "a.gguf")
    parts = (StackPart(0, TILE, 1, (None,)), StackPart(TILE, TILE, 2, (low_rank,)))
    stack = AdapterStack(None, "a stack", 64, parts, is_gated=False)
    packed = pack_stack(stack)
    assert stack.ranks == 2 * TILE
    assert packed.places.tolist() == [[0, 0, 0], [0, 0, 5]]
    assert packed.outputs.tolist() == [[0, TILE, 1], [TILE, TILE, 2]]
    stored_b = packed.b.reshape(32, 8)
    assert not stored_b[:, 5:].any()
    found = packed.factors[1] * (stored_b[:, :5].astype(float) @ packed.a.astype(float))
    expected = 0.75 * (b.astype(float) @ a.astype(float))
    assert np.abs(found - expected).max() <= 2e-3 * np.abs(expected).max()
