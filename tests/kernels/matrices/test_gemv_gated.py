"""rf_gemv_gated_*: gate and up, rounded to int8 by the launch that makes it.

It does what rf_gemv_* and rf_quantize_act do one after the other, so those are the oracle, to the
last bit; test_gemv.py and test_quantize_act.py compare them with float64.
"""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge_hip.weights.formats import FORMAT_NUMBERS
from tests.kernels.matrices.test_gemv_mixed import QUANTISED, ROWS_AND_SLICES, end_for
from tests.support.launches.kernels import Device
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.linear import GELU_TANH, SILU, random_activation, random_layer


def _check(
    device: Device,
    name: str,
    features: int,
    in_features: int,
    *,
    activation: int = SILU,
    rows: int = 1,
    slices: int = 1,
    variant: int = 1,
    block: int = 64,
) -> None:
    rng = np.random.default_rng(5)
    layer = random_layer(rng, name, features, in_features, activation)
    quantised = quantise(random_activation(rng, rows, in_features), slices)
    weight = device.upload(layer.packed())
    x = device.upload(quantised.q), device.upload(quantised.scales)
    low, shape = (slices - 1) * rows * features, (rows, features)
    found = []
    for is_one in (False, True):
        out = device.empty(shape, np.float32)
        q = device.empty((slices, *shape), np.int8)
        scale = device.empty((slices, rows, features // 32), SCALE_DTYPE)
        counts = rows, slices, features, layer.quant_blocks, activation
        if is_one:
            device.launch(
                f"rf_gemv_gated_r{variant}{end_for(name)}",
                weight,
                *x,
                *(out, None, q, scale, low),
                *counts,
                FORMAT_NUMBERS[name],
                grid=features // 32,
                block=block,
            )
        else:
            kernel, grid = f"rf_gemv_{name}_r{variant}", layer.stored_rows // 16
            device.launch(kernel, weight, *x, None, out, *counts, grid=grid, block=block)
            count = rows * features
            device.launch(
                "rf_quantize_act",
                *(out, q, scale, low, count),
                grid=-(-count // 1024),
                block=256,
            )
        found.append([array.get().tobytes() for array in (out, q, scale)])
    assert found[1] == found[0]


@pytest.mark.parametrize("name", QUANTISED)
def test_a_block_rounds_its_columns(device: Device, name: str) -> None:
    _check(device, name, 64, 512)


@pytest.mark.parametrize(("name", "rows", "slices", "variant", "block"), ROWS_AND_SLICES)
def test_rows_and_slices(
    device: Device, name: str, rows: int, slices: int, variant: int, block: int
) -> None:
    _check(
        device,
        name,
        96,
        768,
        activation=GELU_TANH,
        rows=rows,
        slices=slices,
        variant=variant,
        block=block,
    )
