"""rf_embed_add_*: the embedding of positions and of a type is added to that of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.weights import random_matrix

# rows of the table, columns, positions
CASES = {
    "one_token": (32, 32, [31]),
    "ragged_table": (45, 384, [0, 1, 44, 0, 1]),
    "many_blocks": (9, 1056, [8, 0]),
}


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("typed", [True, False], ids=["typed", "untyped"])
@pytest.mark.parametrize(("rows", "columns", "positions"), CASES.values(), ids=CASES.keys())
def test_adds_rows(
    device: Device, name: str, typed: bool, rows: int, columns: int, positions: list[int]
) -> None:
    rng = np.random.default_rng(1)
    table = random_matrix(rng, name, rows, columns)
    x = rng.standard_normal((len(positions), columns)).astype(np.float32)
    type_row = rng.standard_normal(columns).astype(np.float32)
    there = device.upload(x, "x")
    items = columns // (4 if name == "f32" else 8)
    device.launch(
        f"rf_embed_add_{name}",
        device.upload(table.packed(), "table"),
        device.upload(np.array(positions, np.int32), "positions"),
        device.upload(type_row, "type") if typed else None,
        there,
        rows,
        table.quant_blocks,
        grid=(-(-items // 64), len(positions)),
        block=64,
    )
    expected = x.astype(np.float64) + table.values()[positions] + (type_row if typed else 0)
    check(there.get(), expected, rtol=1e-6, atol=1e-6)


def test_a_model_that_rotates_has_a_type_only(device: Device) -> None:
    x, type_row = np.ones((2, 64), np.float32), np.arange(64, dtype=np.float32)
    there = device.upload(x)
    args = (None, None, device.upload(type_row), there, 0, 2)
    device.launch("rf_embed_add_f32", *args, grid=(1, 2), block=64)
    np.testing.assert_array_equal(there.get(), x + type_row)
