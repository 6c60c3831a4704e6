"""rf_clamp_*: numbers within bounds, also before a gate is applied, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.models.config import ActivationFunction
from rocmforge_hip.device.constants import GELU_TANH, SILU
from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check

Array = npt.NDArray[Any]

COUNTS = {"ragged_last_wave": 96, "two_and_a_tail": 2048 + 288}
BOUNDS = np.array([-1.3, 0.7], np.float32)
UP_BOUNDS = np.array([-0.4, 2.1], np.float32)


def values(count: int, seed: int = 1) -> Array:
    """Numbers in and beyond the bounds, and some that are not finite."""
    found = 2 * np.random.default_rng(seed).standard_normal(count)
    found[:4] = [np.nan, np.inf, -np.inf, 0]
    return found


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS.keys())
def test_halves_and_floats_end_at_their_bounds(device: Device, count: int) -> None:
    """What is no number stays so; halves go to another place, or stay in theirs."""
    halves, floats = values(count).astype(np.float16), values(count).astype(np.float32)
    x, out = device.upload(halves), device.empty((count,), np.float16)
    of_floats, bounds = device.upload(floats), device.upload(BOUNDS)
    grid = -(-count // 2048)
    device.launch("rf_clamp_half", x, out, bounds, np.int64(count), grid=grid, block=256)
    assert np.array_equal(x.get(), halves, equal_nan=True)
    device.launch("rf_clamp_half", x, x, bounds, np.int64(count), grid=grid, block=256)
    device.launch(
        "rf_clamp_float", of_floats, bounds, np.int64(count), grid=-(-count // 1024), block=256
    )
    expected = np.clip(halves, *BOUNDS).astype(np.float16)
    assert np.array_equal(out.get(), expected, equal_nan=True)
    assert np.array_equal(x.get(), expected, equal_nan=True)
    assert np.array_equal(of_floats.get(), np.clip(floats, *BOUNDS), equal_nan=True)


def test_bounds_may_be_infinite(device: Device) -> None:
    x, bounds = device.upload(values(32).astype(np.float32)), np.array([-np.inf, np.inf], "<f4")
    device.launch("rf_clamp_float", x, device.upload(bounds), np.int64(32), grid=1, block=256)
    assert np.array_equal(x.get(), values(32).astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS.keys())
@pytest.mark.parametrize(
    ("activation", "kind"),
    [(GELU_TANH, ActivationFunction.GELU_TANH), (SILU, ActivationFunction.SILU)],
)
def test_gate_and_up_have_bounds_of_their_own(
    device: Device, count: int, activation: int, kind: ActivationFunction
) -> None:
    gate, up = (values(count, seed).astype(np.float16) for seed in (2, 3))
    there = device.upload(gate)
    device.launch(
        "rf_gate_clamped_half",
        *(there, device.upload(up), device.upload(BOUNDS), device.upload(UP_BOUNDS)),
        np.int64(count),
        np.int32(activation),
        grid=-(-count // 2048),
        block=256,
    )
    inner = ops.activate(np.clip(gate.astype(np.float64), *BOUNDS), kind)
    expected = inner * np.clip(up.astype(np.float64), *UP_BOUNDS)
    check(there.get()[1:], expected[1:], rtol=6e-4, atol=6e-7)
