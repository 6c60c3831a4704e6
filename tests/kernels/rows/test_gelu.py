"""rf_gelu_half: x * Phi(x), against math.erf in float64; and its other forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.models.config import ActivationFunction
from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check

Array = npt.NDArray[Any]

COUNTS = {
    "one_block": 32,
    "ragged_last_wave": 96,
    "one_block_of_threads": 1024,
    "two_and_a_tail": 2048 + 288,
}


FORMS = {
    "rf_gelu_half": ActivationFunction.GELU,
    "rf_gelu_tanh_half": ActivationFunction.GELU_TANH,
    "rf_gelu_quick_half": ActivationFunction.QUICK_GELU,
}


def expected(kernel: str, x: Array) -> Array:
    return ops.activate(x.astype(np.float64), FORMS[kernel])


def values(count: int) -> Array:
    """From where the result is almost 0 to where it is almost x, in random order."""
    return np.random.default_rng(1).permutation(np.linspace(-7, 7, count)).astype(np.float32)


@pytest.mark.parametrize("kernel", FORMS)
@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS.keys())
def test_halves_in_place(device: Device, kernel: str, count: int) -> None:
    x = values(count).astype(np.float16)
    there = device.upload(x)
    device.launch(kernel, there, np.uint64(count), grid=-(-count // 2048), block=256)
    check(there.get(), expected(kernel, x), rtol=6e-4, atol=6e-7)


@pytest.mark.parametrize("kernel", FORMS)
def test_large_values_and_nans(device: Device, kernel: str) -> None:
    x = np.zeros(32, np.float16)
    x[:5] = [65504, -65504, 100, -100, np.nan]
    there = device.upload(x)
    device.launch(kernel, there, np.uint64(32), grid=1, block=256)
    got = there.get()
    assert got[:4].tolist() == [65504, 0, 100, 0]
    assert np.isnan(got).tolist() == [False] * 4 + [True] + [False] * 27
