"""rf_short_conv: causal convolutions of few taps and their states, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device, DeviceArray, Part, check
from tests.support.operands.activations import SCALE_DTYPE, QuantisedActivation
from tests.support.operands.recurrent import (
    BATCHES,
    NO_SLOT,
    UNTOUCHED,
    Array,
    Batch,
    Float64,
    wide,
)

THREADS = 64
TOKENS = 8  # of a block
BY_BATCH = pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())


def silu(x: Float64) -> Float64:
    return x / (1 + np.exp(-x))  # type: ignore[no-any-return]


def convolve(
    inputs: Float64, state: Float64, weight: Float64, bias: Float64
) -> tuple[Float64, Float64]:
    """Filters of [channels, width] over [tokens, channels]; the result and the next state."""
    width = weight.shape[1]
    all_inputs = np.concatenate([state, inputs])
    sums = [
        (all_inputs[token : token + width] * weight.T).sum(axis=0) for token in range(len(inputs))
    ]
    return np.array(sums).reshape(inputs.shape) + bias, all_inputs[len(inputs) :]


def launch(
    device: Device,
    batch: Batch,
    x: tuple[DeviceArray | Part | None, ...],  # x, before, after
    weight: Array,
    bias: Array | None,
    state: DeviceArray,
    outputs: tuple[DeviceArray | None, ...],
    stride: int,
    *,
    silu: bool,
) -> None:
    channels, width = weight.shape
    lo_offset = 0 if outputs[2] is None else batch.rows * channels
    device.launch(
        "rf_short_conv",
        *x,
        device.upload(weight),
        None if bias is None else device.upload(bias),
        *batch.arrays(device),
        state,
        *outputs,
        *(lo_offset, stride, channels, width, int(silu)),
        grid=(-(-channels // (4 * THREADS)), -(-batch.longest // TOKENS), len(batch.taken)),
        block=THREADS,
    )


@pytest.mark.parametrize(("channels", "width"), [(36, 4), (260, 3), (64, 2)])
@BY_BATCH
def test_inputs_of_earlier_steps_come_from_the_state(
    device: Device, batch: Batch, channels: int, width: int
) -> None:
    random = np.random.default_rng(5)
    x, states = (
        batch.random_rows(random, channels),
        batch.random_states(random, width - 1, channels),
    )
    weight = random.standard_normal((channels, width)).astype(np.float32)
    bias = random.standard_normal(channels).astype(np.float32)
    out = device.upload(np.full(x.shape, UNTOUCHED, np.float32), "out")
    there = device.upload(states, "state")
    inputs = (device.upload(wide(x, channels + 8), "x"), None, None)
    launch(
        *(device, batch, inputs, weight, bias, there, (out, None, None, None)),
        *(channels + 8,),
        silu=True,
    )
    expected = np.full(x.shape, UNTOUCHED)

    def run(rows: slice, begin: Float64) -> tuple[Float64, Float64]:
        inputs = x[rows].astype(np.float64)
        y, after = convolve(inputs, begin, weight.astype(np.float64), bias.astype(np.float64))
        return silu(y), after

    next_states = batch.run(run, states, expected)
    check(out.get(), expected, rtol=1e-5, atol=2e-6)
    check(there.get(), next_states)


@pytest.mark.parametrize("half", [False, True], ids=["int8", "f16"])
@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_gates_before_and_after_the_filter(device: Device, name: str, half: bool) -> None:
    """As LFM2 has it: its three activations are columns of one."""
    batch, channels, width = BATCHES[name], 96, 3
    random = np.random.default_rng(6)
    whole = batch.random_rows(random, 3 * channels)
    states = batch.random_states(random, width - 1, channels)
    weight = random.standard_normal((channels, width)).astype(np.float32)
    there, state = device.upload(whole, "bcx"), device.upload(states, "state")
    x, before, after = (there.part(first * channels) for first in (2, 0, 1))
    f16 = device.upload(np.full((batch.rows, channels), UNTOUCHED, np.float16), "f16")
    q = device.upload(np.zeros((2, batch.rows, channels), np.int8), "q")
    scales = device.upload(np.zeros((2, batch.rows, channels // 32), SCALE_DTYPE).view(np.uint64))
    outputs = (None, f16, None, None) if half else (None, None, q, scales)
    launch(
        *(device, batch, (x, before, after), weight, None, state, outputs, 3 * channels),
        silu=False,
    )
    got = (
        f16.get().astype(np.float64)
        if half
        else QuantisedActivation(q.get(), scales.get().view(SCALE_DTYPE)).values()
    )
    for part, rows in batch.of_taken():
        own_b, own_c, own_x = np.split(whole[rows].astype(np.float64), 3, axis=1)
        begin = batch.first_state(part, states)
        y, next_state = convolve(
            own_b * own_x, begin, weight.astype(np.float64), np.zeros(channels)
        )
        check(got[rows], own_c * y, rtol=1e-3, atol=2e-3)
        if part.slot != NO_SLOT and part.tokens:
            check(state.get()[part.slot], next_state, rtol=1e-6)
