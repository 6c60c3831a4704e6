"""rf_embed_*: rows of a table of any type, times a scale."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge.checkpoint.formats import FORMATS
from tests.support.launches.kernels import Device, check
from tests.support.operands.weights import (
    ALL_TYPES,
    FLOAT_TYPES,
    QUANT_BLOCK,
    QUANTISED_TYPES,
    random_matrix,
)


def elements_of_a_lane(name: str) -> int:
    """Elements of a row that one lane takes: 16 bytes of numbers, or one or two quant blocks."""
    format = FORMATS[name]
    if not format.is_quantised:
        return 16 // format.block_bytes
    return QUANT_BLOCK if format.block_size == QUANT_BLOCK else 2 * QUANT_BLOCK


@pytest.mark.parametrize("name", ALL_TYPES)
@pytest.mark.parametrize(
    ("vocabulary", "columns", "tokens"),
    [(32, 256, [31]), (45, 768, [0, 44, 7, 7]), (9, 4352, [8])],
    ids=["one_block", "ragged_tail", "many_blocks"],
)
def test_gives_the_scaled_rows(
    device: Device, name: str, vocabulary: int, columns: int, tokens: list[int]
) -> None:
    table = random_matrix(np.random.default_rng(0), name, vocabulary, columns)
    out = device.empty((len(tokens), columns), np.float32, "out")
    lanes = columns // elements_of_a_lane(name)
    device.launch(
        f"rf_embed_{name}",
        device.upload(table.packed(), "table"),
        device.upload(np.array(tokens, np.int32), "tokens"),
        out,
        vocabulary,
        table.quant_blocks,
        2.5,
        grid=(-(-lanes // 64), len(tokens)),
        block=64,
    )
    check(out.get(), 2.5 * table.values()[tokens], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", QUANTISED_TYPES)
def test_every_code_stands_for_its_weight(device: Device, name: str) -> None:
    # The largest codebook has 1024 entries: each is looked up about 17 times.
    rows, columns = 32, 4352
    table = random_matrix(np.random.default_rng(2), name, rows, columns)
    out = device.empty((rows, columns), np.float32, "out")
    device.launch(
        f"rf_embed_{name}",
        device.upload(table.packed(), "table"),
        device.upload(np.arange(rows, dtype=np.int32), "tokens"),
        out,
        rows,
        table.quant_blocks,
        1.0,
        grid=(-(-columns // elements_of_a_lane(name) // 64), rows),
        block=64,
    )
    check(out.get(), table.values(), rtol=1e-5, atol=1e-6)


def test_types_without_blocks_are_exact(device: Device) -> None:
    for name in FLOAT_TYPES:
        table = random_matrix(np.random.default_rng(1), name, 3, 32)
        out = device.empty((1, 32), np.float32, "out")
        ids = device.upload(np.array([2], np.int32), "tokens")
        weight = device.upload(table.packed(), "table")
        device.launch(f"rf_embed_{name}", weight, ids, out, 3, 1, 1.0, grid=(1, 1), block=64)
        np.testing.assert_array_equal(out.get()[0], table.values()[2])
