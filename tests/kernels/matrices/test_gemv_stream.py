"""rf_gemv_deferred_*_stream, whose weights come through LDS.

They compute what kernels that have them in registers do, which are the oracle, to the last bit.
"""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge_hip.ops.linear.gemv import GEMV_THREADS
from rocmforge_hip.weights.formats import FORMAT_NUMBERS
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.linear import SILU, random_activation, random_layer

pytestmark = pytest.mark.usefixtures("host_or_hopper")

EPS = 1e-3  # so large that it counts
STREAMED = ("q4_k", "q6_k", "q8_0")


def _norm_later(device: Device, in_features: int) -> tuple[tuple[DeviceArray, ...], DeviceArray]:
    """An activation whose norm is left for later: codes with scales, and sums of squares."""
    rng = np.random.default_rng(5)
    quantised = quantise(random_activation(rng, 1, in_features), 1)
    squares = rng.uniform(0.5, 2, in_features // 32).astype(np.float32)
    return (device.upload(quantised.q), device.upload(quantised.scales)), device.upload(squares)


@pytest.mark.parametrize(("in_features", "blocks"), [(2048, 3), (5120, 5), (2304, 19)])
@pytest.mark.parametrize("last", ["q6_k", "q8_0"])
def test_matrices_of_several_formats(
    device: Device, in_features: int, blocks: int, last: str
) -> None:
    rng = np.random.default_rng(1)
    sizes = (("q6_k", 160), ("q4_k", 96), (last, 48))
    layers = [random_layer(rng, name, rows, in_features) for name, rows in sizes]
    matrices = [
        (device.upload(layer.packed()), None, FORMAT_NUMBERS[name], layer)
        for layer, (name, _) in zip(layers, sizes, strict=True)
    ]
    x, squares = _norm_later(device, in_features)
    found = []
    for kernel, grid in (
        ("rf_gemv_deferred_mixed", sum(layer.stored_rows for layer in layers) // 16),
        ("rf_gemv_deferred_mixed_stream", blocks),
    ):
        outs = [device.empty((1, layer.out_features), np.float32) for layer in layers]
        factors = [
            (data, bias, out, layer.out_features, number)
            for (data, bias, number, layer), out in zip(matrices, outs, strict=True)
        ]
        device.launch(
            kernel,
            *(value for factor in factors for value in factor),
            *x,
            layers[0].quant_blocks,
            squares,
            EPS,
            grid=grid,
            block=GEMV_THREADS,
        )
        found.append([out.get().tobytes() for out in outs])
    assert found[1] == found[0]


@pytest.mark.parametrize("name", ["q4_k", "q8_0"])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_gate_and_up(device: Device, name: str, blocks: int) -> None:
    rng = np.random.default_rng(3)
    layer = random_layer(rng, name, 160, 2304, SILU)
    data = device.upload(layer.packed())
    x, squares = _norm_later(device, 2304)
    found = []
    for kernel, grid in (("rf_gemv_deferred_gated", 5), ("rf_gemv_deferred_gated_stream", blocks)):
        out, q = device.empty((1, 160), np.float32), device.empty((1, 160), np.int8)
        scale = device.empty((5,), SCALE_DTYPE)
        device.launch(
            kernel,
            *(data, *x, out, None, q, scale),
            *(0, 160, layer.quant_blocks, SILU, FORMAT_NUMBERS[name]),
            *(squares, EPS),
            grid=grid,
            block=GEMV_THREADS,
        )
        found.append([array.get().tobytes() for array in (out, q, scale)])
    assert found[1] == found[0]


@pytest.mark.parametrize("name", STREAMED)
def test_a_sum_whose_norm_is_left_for_later(device: Device, name: str) -> None:
    rng = np.random.default_rng(4)
    layer = random_layer(rng, name, 96, 6400)
    data, bias = (
        device.upload(layer.packed()),
        device.upload(rng.standard_normal(96, np.float32)),
    )
    norm, old = rng.standard_normal((2, 96), np.float32)
    x, _ = _norm_later(device, 6400)
    found = []
    for kernel, block in (("rf_gemv_deferred", 512), ("rf_gemv_deferred_stream", 256)):
        residual, q = device.upload(old), device.empty((1, 96), np.int8)
        scale, squares = device.empty((3,), SCALE_DTYPE), device.empty((3,), np.float32)
        device.launch(
            kernel,
            *(data, *x, bias),
            *(96, layer.quant_blocks, FORMAT_NUMBERS[name]),
            *(residual, device.upload(norm), q, scale, squares),
            grid=3,
            block=block,
        )
        found.append([array.get().tobytes() for array in (residual, q, scale, squares)])
    assert found[1] == found[0]
