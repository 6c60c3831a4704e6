"""rf_quantize_act and rf_half_act: activations as the linear kernels read them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.activations import BLOCK, SCALE_DTYPE, quantise

SIZES = pytest.mark.parametrize(
    ("rows", "in_features"),
    [(1, 32), (1, 1024), (1, 1056), (3, 96), (5, 448)],
    ids=["one_block", "one_thread_block", "ragged_tail", "few_rows", "many_thread_blocks"],
)


def _quantize(
    device: Device, x: npt.NDArray[np.float32], slices: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Codes [slices, rows, K] and their scales."""
    rows, in_features = x.shape
    q = device.empty((slices, rows, in_features), np.int8, "q")
    scales = device.empty((slices, rows, in_features // BLOCK), SCALE_DTYPE, "scale")
    device.launch(
        "rf_quantize_act",
        device.upload(x, "x"),
        q,
        scales,
        x.size if slices == 2 else 0,
        x.size,
        grid=-(-x.size // 1024),
        block=256,
    )
    return q.get(), scales.get()


@SIZES
def test_quantises_blocks_of_32(device: Device, rows: int, in_features: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows, in_features)).astype(np.float32)
    q, scales = _quantize(device, x)
    q, scales = q[0], scales[0]
    expected = quantise(x)
    # A product that lies next to a half may round either way.
    assert np.abs(q.astype(int) - expected.q[0]).max() <= 1
    assert np.count_nonzero(q != expected.q[0]) <= x.size // 1000
    check(scales["scale"], expected.scales["scale"][0], rtol=1e-6)
    sums = q.reshape(rows, -1, 2, 16).sum(axis=-1, dtype=np.int64)
    np.testing.assert_array_equal(scales["sum_low"], sums[..., 0])
    np.testing.assert_array_equal(scales["sum_high"], sums[..., 1])


def test_a_block_of_zeros_has_scale_zero(device: Device) -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, 40] = -2.0
    q, scales = _quantize(device, x)
    np.testing.assert_array_equal(q[0, 0, :32], 0)
    assert q[0, 0, 40] == -127
    check(scales["scale"][0, 0], np.array([0.0, 2.0 / 127]), rtol=1e-6)


@SIZES
def test_a_second_term_holds_what_the_first_has_left(
    device: Device, rows: int, in_features: int
) -> None:
    x = np.random.default_rng(2).standard_normal((rows, in_features)).astype(np.float32)
    q, scales = _quantize(device, x, slices=2)
    sums = q.reshape(2, rows, -1, 2, 16).sum(axis=-1, dtype=np.int64)
    np.testing.assert_array_equal(scales["sum_low"], sums[..., 0])
    np.testing.assert_array_equal(scales["sum_high"], sums[..., 1])
    largest = np.abs(x.reshape(rows, -1, BLOCK)).max(axis=-1, keepdims=True)
    steps = np.repeat(scales["scale"], BLOCK, axis=-1).astype(np.float64)
    error = np.abs((q * steps).sum(axis=0) - x).reshape(rows, -1, BLOCK)
    # Half a step of a step, with what float32 loses of the difference.
    assert (error <= largest * (0.51 / 127 / 254 + 2e-7)).all()


@SIZES
def test_halves_round_to_nearest(device: Device, rows: int, in_features: int) -> None:
    x = np.random.default_rng(1).standard_normal((rows, in_features)).astype(np.float32)
    out = device.empty((rows, in_features), np.float16, "out")
    device.launch(
        "rf_half_act", device.upload(x, "x"), out, x.size, grid=-(-x.size // 1024), block=256
    )
    np.testing.assert_array_equal(out.get(), x.astype(np.float16))


def test_halves_are_finite(device: Device) -> None:
    x = np.array([1e6, -1e6, 65504.0, 65519.0, -65520.0, 0.0, 1e-9, 70000.0], np.float32)
    out = device.empty((8,), np.float16, "out")
    device.launch("rf_half_act", device.upload(x, "x"), out, x.size, grid=1, block=256)
    np.testing.assert_array_equal(out.get(), np.clip(x, -65504, 65504).astype(np.float16))
