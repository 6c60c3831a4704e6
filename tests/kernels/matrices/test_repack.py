"""rf_repack_*: blocks of a GGUF file to the layout of weights.h."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device
from tests.support.operands.weights import (
    ALL_TYPES,
    ROW_ALIGN,
    Matrix,
    block_features,
    gated_rows,
    random_matrix,
    round_up,
)

AS_IS, AS_GATE, AS_UP = 0, 1, 2


def _repack(
    device: Device,
    parts: list[tuple[Matrix, int, int]],
    stored_rows: int,
    *,
    matrix_rows: int = 1 << 20,
    matrices: int = 1,
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Repacks (matrix, first row, placing) one after the other into one matrix, or into several."""
    first = parts[0][0]
    nbytes = matrices * first.raw.shape[1] * stored_rows
    weight = device.upload(np.zeros(nbytes, np.uint8), "weight")
    for matrix, first_row, placing in parts:
        blocks = device.upload(matrix.raw, "blocks")
        threads = matrix.rows * matrix.quant_blocks
        arguments = (
            blocks,
            weight,
            matrix.rows,
            matrix.quant_blocks,
            stored_rows,
            first_row,
            matrix_rows,
            placing,
        )
        kernel = f"rf_repack_{matrix.name}"
        device.launch(kernel, *arguments, grid=-(-threads // 256), block=256)
    return weight.get()


@pytest.mark.parametrize("name", ALL_TYPES)
@pytest.mark.parametrize("in_features", [256, 768], ids=["one_block", "many_blocks"])
def test_writes_the_planes_of_weights_h(device: Device, name: str, in_features: int) -> None:
    matrix = random_matrix(np.random.default_rng(0), name, 11, in_features)
    weight = _repack(device, [(matrix, 0, AS_IS)], round_up(matrix.rows, ROW_ALIGN))
    np.testing.assert_array_equal(weight, matrix.packed())


def test_rows_may_come_in_parts(device: Device) -> None:
    rng = np.random.default_rng(1)
    matrix = random_matrix(rng, "q4_k", 40, 256)
    head = Matrix("q4_k", matrix.raw[:17], 256)
    tail = Matrix("q4_k", matrix.raw[17:], 256)
    weight = _repack(device, [(head, 0, AS_IS), (tail, 17, AS_IS)], 64)
    np.testing.assert_array_equal(weight, matrix.packed())


@pytest.mark.parametrize("rows", [16, 40], ids=["one_tile", "ragged_tail"])
def test_interleaves_gate_and_up(device: Device, rows: int) -> None:
    rng = np.random.default_rng(2)
    gate, up = (random_matrix(rng, "q5_0", rows, 64) for _ in range(2))
    gate_at, up_at = gated_rows(rows)
    stored_rows = round_up(rows, 16) * 2
    weight = _repack(device, [(gate, 0, AS_GATE), (up, 0, AS_UP)], stored_rows)
    expected = Matrix("q5_0", np.concatenate((gate.raw, up.raw)), 64)
    order = np.concatenate((gate_at, up_at))
    np.testing.assert_array_equal(weight, expected.packed(order))


@pytest.mark.parametrize("name", ALL_TYPES)
def test_experts_become_matrices_one_after_the_other(device: Device, name: str) -> None:
    rng = np.random.default_rng(3)
    columns = 2 * block_features(name)
    gates, ups = ([random_matrix(rng, name, 5, columns) for _ in range(3)] for _ in range(2))
    # They come in pieces that end within an expert.
    parts = []
    for experts, placing in ((gates, AS_GATE), (ups, AS_UP)):
        rows = np.concatenate([expert.raw for expert in experts])
        parts.append((Matrix(name, rows[:7], columns), 0, placing))
        parts.append((Matrix(name, rows[7:], columns), 7, placing))
    weight = _repack(device, parts, ROW_ALIGN, matrix_rows=5, matrices=3)
    order = np.concatenate(gated_rows(5))
    expected = [
        Matrix(name, np.concatenate((gate.raw, up.raw)), columns).packed(order)
        for gate, up in zip(gates, ups, strict=True)
    ]
    np.testing.assert_array_equal(weight, np.concatenate(expected))
