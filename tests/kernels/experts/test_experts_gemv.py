"""rf_experts_gate_up_* and rf_experts_down_*: the chosen experts of a few tokens.

The int8 activations are part of the operation, as for rf_gemv_*. A block of gate_up is of one pair
of a token and an expert; the waves of a block of down divide the experts of a token, or share one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import SCALE_DTYPE, QuantisedActivation, quantise
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
    SILU,
    SQUARED_RELU,
    random_activation,
    worst_error,
)
from tests.support.operands.weights import ALL_TYPES, FLOAT_TYPES, block_features

_ROUNDING = 3e-6  # of float32 sums of a few hundred terms, relative to their magnitude


def _activation(
    device: Device, layer: ExpertLayer, x: Float32, slices: int
) -> tuple[str, tuple[DeviceArray, ...]]:
    """The end of the kernel's name and the arrays of the activation."""
    name = layer.first.weights[0].name
    if name in FLOAT_TYPES:
        return name, (device.upload(x, "x"),)
    quantised = quantise(x, slices)
    arrays = device.upload(quantised.q, "q"), device.upload(quantised.scales, "scale")
    return f"{name}_s{slices}", arrays


def _gate_up(
    device: Device,
    layer: ExpertLayer,
    x: Float32,
    chosen: Int32,
    slices: int,
    block: int,
    *,
    scattered: bool,
) -> tuple[Float32, Any]:
    """The float32 result, and the int8 form of it."""
    weights, first = layer.packed(), layer.first
    shape = chosen.size, first.out_features
    out = device.empty(shape, np.float32, "out")
    q = device.empty((slices, *shape), np.int8, "out q")
    scale = device.empty((slices, shape[0], shape[1] // 32), SCALE_DTYPE, "out scale")
    name, arrays = _activation(device, layer, x, slices)
    is_squared = first.activation == SQUARED_RELU
    of_gate, of_up = layer.biases or (None, None)
    device.launch(
        f"rf_experts_gate_up_{name}",
        *upload_experts(device, weights, scattered=scattered),
        *arrays,
        device.upload(chosen, "chosen"),
        None if of_gate is None else device.upload(of_gate, "gate bias"),
        None if of_up is None else device.upload(of_up, "up bias"),
        *(out, None, q, scale, (slices - 1) * out.get().size),
        weights[0].nbytes,
        *(len(x), chosen.shape[1], first.out_features, first.quant_blocks, first.activation),
        grid=(chosen.size, -(-first.out_features // (64 if is_squared else 32))),
        block=block,
    )
    return out.get(), QuantisedActivation(q.get(), scale.get())


def _check_gate_up(
    device: Device,
    layer: ExpertLayer,
    x: Float32,
    chosen: Int32,
    slices: int = 1,
    block: int = 256,
    *,
    scattered: bool = False,
) -> None:
    actual, stored = _gate_up(device, layer, x, chosen, slices, block, scattered=scattered)
    seen = layer.seen(x, slices)
    made = [
        layer.apply(expert, seen[token])
        for token, row in enumerate(chosen.tolist())
        for expert in row
        if expert != ELSEWHERE
    ]
    expected, magnitude = (np.array(part) for part in zip(*made, strict=True))
    is_here = chosen.ravel() != ELSEWHERE
    actual = actual[is_here]
    assert worst_error(actual, expected, magnitude) < _ROUNDING
    wanted = quantise(actual, slices)
    np.testing.assert_array_equal(stored.q[:, is_here], wanted.q)
    np.testing.assert_array_equal(stored.scales[:, is_here], wanted.scales)


def _check_down(
    device: Device,
    layer: ExpertLayer,
    chosen: Int32,
    rng: np.random.Generator,
    slices: int = 1,
    *,
    scattered: bool = False,
    block: int = 256,
) -> None:
    tokens, count = chosen.shape
    packed, first = layer.packed(), layer.first
    x = random_activation(rng, tokens * count, first.quant_blocks * 32)
    x[chosen.ravel() == ELSEWHERE] = 1e30  # nothing was written there
    weights = rng.uniform(0.1, 1, chosen.shape).astype(np.float32)
    out = device.empty((tokens, first.out_features), np.float32, "out")
    name, arrays = _activation(device, layer, x, slices)
    kernel = f"rf_experts_down_{name}"
    device.launch(
        kernel,
        *upload_experts(device, packed, scattered=scattered),
        *arrays,
        device.upload(chosen, "chosen"),
        device.upload(weights, "weights"),
        device.upload(layer.biases[0], "bias") if layer.biases else None,
        out,
        packed[0].nbytes,
        *(tokens, count, first.out_features, first.quant_blocks),
        grid=(tokens, first.stored_rows // 16),
        block=min(block, device.max_threads(kernel)),
    )
    seen = layer.seen(x, slices).reshape(tokens, count, -1)
    expected = np.zeros((tokens, first.out_features))
    magnitude = np.full_like(expected, np.finfo(np.float32).tiny)
    for token in range(tokens):
        for place in np.flatnonzero(chosen[token] != ELSEWHERE):
            made = layer.apply(int(chosen[token, place]), seen[token, place])
            for total, part in zip((expected, magnitude), made, strict=True):
                total[token] += float(weights[token, place]) * part
    assert worst_error(out.get(), expected, magnitude) < _ROUNDING


@pytest.mark.parametrize("name", ALL_TYPES)
def test_each_pair_goes_through_its_expert(device: Device, name: str) -> None:
    rng = np.random.default_rng(0)
    layer = random_experts(rng, 3, name, 32, 2 * block_features(name), SILU)
    x = random_activation(rng, 2, layer.first.quant_blocks * 32)
    _check_gate_up(device, layer, x, np.array([[2, 0], [0, 1]], np.int32))


@pytest.mark.parametrize("name", ALL_TYPES)
def test_a_tokens_experts_are_added_up(device: Device, name: str) -> None:
    rng = np.random.default_rng(1)
    layer = random_experts(rng, 3, name, 37, block_features(name))
    _check_down(device, layer, np.array([[2, 0], [0, 1]], np.int32), rng)


@pytest.mark.parametrize("name", ["f32", "mxfp4"])
@pytest.mark.parametrize("activation", [SILU, GELU_TANH, CLAMPED_SWIGLU])
def test_biases_are_added_before_the_gate(device: Device, name: str, activation: int) -> None:
    rng = np.random.default_rng(2)
    layer = random_experts(rng, 4, name, 96, 96, activation, has_biases=True)
    x = 4 * random_activation(rng, 3, 96)
    _check_gate_up(device, layer, x, random_choice(rng, 3, 4, 2), block=512)


@pytest.mark.parametrize("out_features", [32, 64, 96, 160])
@pytest.mark.parametrize("name", ["f32", "q4_k"])
def test_up_alone_is_squared(device: Device, name: str, out_features: int) -> None:
    """Blocks of 64 columns, the last of which may have half of them."""
    rng = np.random.default_rng(8)
    layer = random_experts(rng, 3, name, out_features, 256, SQUARED_RELU)
    x = 4 * random_activation(rng, 2, 256)
    chosen = np.array([[2, 0], [0, 1]], np.int32)
    _check_gate_up(device, layer, x, chosen)
    _check_gate_up(device, layer, x, chosen, block=512, scattered=True)


@pytest.mark.parametrize("name", ["bf16", "mxfp4"])
def test_biases_of_down_have_the_weights_of_their_experts(device: Device, name: str) -> None:
    rng = np.random.default_rng(3)
    layer = random_experts(rng, 4, name, 40, 96, has_biases=True)
    _check_down(device, layer, random_choice(rng, 3, 4, 2), rng)


@pytest.mark.parametrize("name", ["q4_k", "q8_0"])
def test_both_slices_are_multiplied(device: Device, name: str) -> None:
    rng = np.random.default_rng(4)
    chosen = random_choice(rng, 2, 3, 2)
    layer = random_experts(rng, 3, name, 32, 512, SILU)
    _check_gate_up(device, layer, random_activation(rng, 2, 512), chosen, slices=2)
    _check_down(device, random_experts(rng, 3, name, 24, 512), chosen, rng, slices=2)


@pytest.mark.parametrize("count", [1, 3, 8, 10])
@pytest.mark.parametrize("name", ["f16", "q6_k"])
def test_waves_divide_any_number_of_experts(device: Device, name: str, count: int) -> None:
    rng = np.random.default_rng(5)
    layer = random_experts(rng, 12, name, 16, 768)
    _check_down(device, layer, random_choice(rng, 2, 12, count), rng)
    _check_down(device, layer, random_choice(rng, 2, 12, count), rng, block=512)


@pytest.mark.parametrize("name", ["f32", "q4_k"])
def test_experts_are_read_where_the_table_says(device: Device, name: str) -> None:
    rng = np.random.default_rng(6)
    chosen = random_choice(rng, 2, 5, 3)
    layer = random_experts(rng, 5, name, 32, 256, SILU)
    _check_gate_up(device, layer, random_activation(rng, 2, 256), chosen, scattered=True)
    _check_down(device, random_experts(rng, 5, name, 24, 256), chosen, rng, scattered=True)


@pytest.mark.parametrize("name", ["f32", "q4_k"])
def test_experts_of_another_device_are_left_out(device: Device, name: str) -> None:
    rng = np.random.default_rng(7)
    chosen = np.array([[2, ELSEWHERE, 0], [ELSEWHERE] * 3, [1, 2, ELSEWHERE]], np.int32)
    layer = random_experts(rng, 3, name, 32, 256, SILU)
    _check_gate_up(device, layer, random_activation(rng, 3, 256), chosen)
    layer = random_experts(rng, 3, name, 24, 256, has_biases=True)
    _check_down(device, layer, chosen, rng)
    _check_down(device, layer, chosen, rng, block=512)


def test_pairs_of_one_expert_are_computed_two_at_a_time(device: Device) -> None:
    """Of an odd number too, more of them than a wave has lanes, and far from each other."""
    rng = np.random.default_rng(9)
    layer = random_experts(rng, 5, "mxfp4", 32, 256, SILU, has_biases=True)
    chosen = random_choice(rng, 23, 5, 3)
    chosen[1:22][chosen[1:22] == 4] = ELSEWHERE
    chosen[0, 1], chosen[22, 2] = 4, 4
    _check_gate_up(device, layer, random_activation(rng, 23, 256), chosen)
