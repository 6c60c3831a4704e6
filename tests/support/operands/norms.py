"""What the tests of all norms have in common: shapes named after the kernels' loops, and rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

# rows, dim, threads of a block. A thread holds up to four groups of four values.
_CASES = {
    "one_row_part_of_one_wave": (1, 32, 64),
    "one_group_a_thread": (2, 256, 64),
    "ragged_second_group": (3, 576, 128),
    "four_groups_a_thread": (2, 1024, 64),
    "not_a_multiple_of_32": (2, 132, 64),
    "wave_plus_one": (1, 4 * 65, 128),
    "many_rows": (9, 384, 128),
    "zero_rows": (0, 64, 64),
}
ALL_SHAPES = pytest.mark.parametrize(("rows", "dim", "threads"), _CASES.values(), ids=_CASES.keys())


def random_rows(rows: int, dim: int, seed: int = 1) -> npt.NDArray[np.float32]:
    """Values [rows, dim] around 0."""
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
