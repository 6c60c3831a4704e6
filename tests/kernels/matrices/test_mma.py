"""The fragment layouts of mma.h, against the definition of a matrix product."""

from __future__ import annotations

import numpy as np

from tests.support.launches.kernels import Device


def test_multiplies_asymmetric_matrices(either: Device) -> None:
    """Every element of A, B and C is different, and the sums are exact."""
    a = (np.arange(16 * 32).reshape(16, 32) % 61 - 30).astype(np.float16)
    b = (np.arange(16 * 32).reshape(16, 32) % 53 - 26).astype(np.float16)
    c = np.arange(256, dtype=np.float32).reshape(16, 16)
    on_device = either.upload(c, "c")
    either.launch(
        "rf_mma_check",
        either.upload(a, "a"),
        either.upload(b, "b"),
        on_device,
        grid=1,
        block=either.wave,
    )
    expected = c + a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(on_device.get(), expected)


def test_every_product_counts_once(either: Device) -> None:
    """A and B of single ones: element (i, j) of C sees k of row i of A and row j of B alone."""
    for i, j, k in [(0, 0, 0), (3, 12, 7), (9, 2, 8), (15, 15, 31), (8, 5, 18)]:
        a, b = np.zeros((16, 32), np.float16), np.zeros((16, 32), np.float16)
        a[i, k], b[j, k] = 2, 3
        c = either.upload(np.zeros((16, 16), np.float32), "c")
        arrays = (either.upload(a, "a"), either.upload(b, "b"), c)
        either.launch("rf_mma_check", *arrays, grid=1, block=either.wave)
        expected = np.zeros((16, 16))
        expected[i, j] = 6
        np.testing.assert_array_equal(c.get(), expected)
