"""rf_experts_*_shared_*: pairs of tokens with an expert in common, on int8 matrix instructions.

Names of cases follow the kernels: eight pairs of an expert go together; waves take four quant
blocks of K in turns, and the last step begins earlier where that does not divide K.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.support.launches.kernels import Device
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.experts import (
    ExpertLayer,
    Float32,
    Int32,
    random_choice,
    random_experts,
    upload_experts,
)
from tests.support.operands.groups import ELSEWHERE
from tests.support.operands.linear import (
    CLAMPED_SWIGLU,
    GELU_TANH,
    NOT_GATED,
    SILU,
    random_activation,
    worst_error,
)

pytestmark = pytest.mark.usefixtures("host_or_hopper")

_NAME = "mxfp4"
_ROUNDING = 3e-6  # of float32 sums of a few hundred terms, relative to their magnitude


def _check(
    device: Device, layer: ExpertLayer, x: Float32, chosen: Int32, *, scattered: bool = False
) -> None:
    """Checks gate and up of tokens, or down of pairs."""
    weights, first = layer.packed(), layer.first
    is_gated = first.activation != NOT_GATED
    shape = chosen.size, first.out_features
    quantised = quantise(x, 1)
    biases = layer.biases or (None,) * len(first.weights)
    arrays = [
        *upload_experts(device, weights, scattered=scattered),
        device.upload(quantised.q, "q"),
        device.upload(quantised.scales, "scale"),
        device.upload(chosen, "chosen"),
        *(None if bias is None else device.upload(bias, "bias") for bias in biases),
    ]
    launch = partial(device.launch, block=256)
    tail = first.out_features, first.quant_blocks
    if is_gated:
        out = device.empty(shape, np.float32, "out")
        q = device.empty((1, *shape), np.int8, "out q")
        scale = device.empty((1, shape[0], shape[1] // 32), SCALE_DTYPE, "out scale")
        launch(
            f"rf_experts_gate_up_shared_{_NAME}",
            *arrays,
            *(out, None, q, scale, 0, weights[0].nbytes, len(x), chosen.shape[1]),
            *(*tail, first.activation),
            grid=(chosen.size, first.out_features // 32),
        )
        results = [out.get()]
    else:
        results = []
        for rows in (32, 64):
            out = device.empty(shape, np.float32, "out")
            launch(
                f"rf_experts_down_shared_{_NAME}_m{rows}",
                *(*arrays, out, weights[0].nbytes, chosen.size, *tail),
                grid=(chosen.size, -(-first.out_features // rows)),
            )
            results.append(out.get())
    seen = layer.seen(x)
    if is_gated:
        seen = seen.repeat(chosen.shape[1], axis=0)
    is_here = chosen.ravel() != ELSEWHERE
    made = [layer.apply(int(chosen.ravel()[pair]), seen[pair]) for pair in np.flatnonzero(is_here)]
    expected, magnitude = (np.array(part) for part in zip(*made, strict=True))
    for result in results:
        assert worst_error(result[is_here], expected, magnitude) < _ROUNDING
    if is_gated:
        wanted = quantise(results[0][is_here], 1)
        np.testing.assert_array_equal(q.get()[:, is_here], wanted.q)
        np.testing.assert_array_equal(scale.get()[:, is_here], wanted.scales)


@pytest.mark.parametrize("quant_blocks", [4, 5, 8, 11, 22, 128])
@pytest.mark.parametrize("activation", [NOT_GATED, SILU])
def test_waves_divide_k(device: Device, activation: int, quant_blocks: int) -> None:
    rng = np.random.default_rng(0)
    layer = random_experts(rng, 3, _NAME, 32, 32 * quant_blocks, activation)
    chosen = np.array([[2, 0], [0, 1]], np.int32)
    rows = 2 if activation != NOT_GATED else 4
    _check(device, layer, random_activation(rng, rows, 32 * quant_blocks), chosen)


@pytest.mark.parametrize("activation", [NOT_GATED, GELU_TANH, CLAMPED_SWIGLU])
@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 20])
def test_pairs_share_an_expert(device: Device, activation: int, tokens: int) -> None:
    """One expert of every token, and others of some; more pairs than a wave has lanes."""
    rng = np.random.default_rng(1)
    layer = random_experts(rng, 4, _NAME, 96, 160, activation, has_biases=True)
    chosen = random_choice(rng, tokens, 3, 2)
    chosen[chosen[:, 0] == 1, 0] = 3
    chosen[:, 1] = 1
    chosen[tokens // 2, 0] = ELSEWHERE
    rows = tokens if activation != NOT_GATED else chosen.size
    x = 4 * random_activation(rng, rows, 160)
    _check(device, layer, x, chosen)
    _check(device, layer, x, chosen, scattered=True)


@pytest.mark.parametrize("out_features", [1, 31, 33, 72])
def test_ragged_columns_of_down(device: Device, out_features: int) -> None:
    rng = np.random.default_rng(2)
    layer = random_experts(rng, 2, _NAME, out_features, 128)
    chosen = np.array([[1, 0], [0, 1], [1, 0]], np.int32)
    _check(device, layer, random_activation(rng, 6, 128), chosen)
