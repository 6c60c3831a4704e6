"""rf_embed_between_*: sums of four rows of a table, each times its share."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.weights import random_matrix

# rows of the table, columns, rows of each token
CASES = {
    "one_token": (32, 32, [[31, 0, 7, 7]]),
    "ragged_table": (45, 384, [[0, 1, 44, 3], [44, 44, 44, 44], [5, 6, 7, 8]]),
    "many_blocks": (9, 1056, [[8, 0, 1, 2], [3, 3, 4, 4]]),
}


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("rows", "columns", "taken"), CASES.values(), ids=CASES.keys())
def test_adds_shares_of_rows(
    device: Device, name: str, rows: int, columns: int, taken: list[list[int]]
) -> None:
    rng = np.random.default_rng(1)
    table = random_matrix(rng, name, rows, columns)
    shares = rng.random((len(taken), 4)).astype(np.float32)
    out = device.upload(np.full((len(taken), columns), np.nan, np.float32), "out")
    items = columns // (4 if name == "f32" else 8)
    device.launch(
        f"rf_embed_between_{name}",
        device.upload(table.packed(), "table"),
        device.upload(np.array(taken, np.int32), "rows"),
        device.upload(shares, "shares"),
        out,
        rows,
        table.quant_blocks,
        grid=(len(taken), -(-items // 64)),
        block=64,
    )
    expected = (table.values()[taken] * shares[..., None].astype(np.float64)).sum(axis=1)
    check(out.get(), expected, rtol=1e-6, atol=1e-6)
