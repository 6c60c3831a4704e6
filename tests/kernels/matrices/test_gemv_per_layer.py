"""rf_gemv_per_layer_*: the gate of a token's other embedding, and what it gates, in one launch.

It does what rf_gemv_* and rf_gate_per_layer do one after the other, so those are the oracle, to the
last bit; test_gemv.py and test_gate_per_layer.py compare them with float64.
"""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge_hip.weights.formats import FORMAT_NUMBERS
from tests.kernels.matrices.test_gemv_mixed import QUANTISED, ROWS_AND_SLICES, end_for
from tests.support.launches.kernels import Device
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.linear import NOT_GATED, random_activation, random_layer

LAYERS, LAYER = 3, 1


def _check(
    device: Device,
    name: str,
    features: int,
    in_features: int,
    *,
    rows: int = 1,
    slices: int = 1,
    variant: int = 1,
    block: int = 64,
) -> None:
    rng = np.random.default_rng(5)
    layer = random_layer(rng, name, features, in_features)
    quantised = quantise(random_activation(rng, rows, in_features), slices)
    weight = device.upload(layer.packed())
    x = device.upload(quantised.q), device.upload(quantised.scales)
    whole = rng.standard_normal((2, rows, LAYERS * features)).astype(np.float32)
    rows_there, projected = (device.upload(part).part(LAYER * features) for part in whole)
    other = rows_there, projected, LAYERS * features
    low, shape = (slices - 1) * rows * features, (rows, features)
    found = []
    for is_one in (False, True):
        out = device.empty(shape, np.float32)
        q = device.empty((slices, *shape), np.int8)
        scale = device.empty((slices, rows, features // 32), SCALE_DTYPE)
        forms = out, None, q, scale, low
        counts = rows, slices, features, layer.quant_blocks
        if is_one:
            device.launch(
                f"rf_gemv_per_layer_r{variant}{end_for(name)}",
                *(weight, *x, *counts, FORMAT_NUMBERS[name], *other, 0.5**0.5, *forms),
                grid=features // 32,
                block=block,
            )
        else:
            gate = device.empty(shape, np.float32)
            device.launch(
                f"rf_gemv_{name}_r{variant}",
                *(weight, *x, None, gate, *counts, NOT_GATED),
                grid=layer.stored_rows // 16,
                block=block,
            )
            device.launch(
                "rf_gate_per_layer",
                *(gate, rows_there, projected, *forms, LAYERS * features, features, 0.5**0.5),
                grid=(-(-features // 1024), rows),
                block=256,
            )
        found.append([array.get().tobytes() for array in (out, q, scale)])
    assert found[1] == found[0]


@pytest.mark.parametrize("name", QUANTISED)
def test_a_block_gates_its_columns(device: Device, name: str) -> None:
    _check(device, name, 96, 512)


@pytest.mark.parametrize(("name", "rows", "slices", "variant", "block"), ROWS_AND_SLICES)
def test_rows_and_slices(
    device: Device, name: str, rows: int, slices: int, variant: int, block: int
) -> None:
    _check(device, name, 64, 768, rows=rows, slices=slices, variant=variant, block=block)
