"""rf_gate_per_layer: a layer's gate times its part of the tokens' other embedding."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge.models.config import ActivationFunction
from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check
from tests.support.operands.activations import SCALE_DTYPE, QuantisedActivation


@pytest.mark.parametrize(
    ("rows", "features"), [(1, 32), (3, 256), (2, 1056)], ids=["least", "one_block", "ragged_tail"]
)
def test_all_forms(device: Device, rows: int, features: int) -> None:
    rng = np.random.default_rng(5)
    layers, layer, shape = 3, 1, (rows, features)
    gate = (4 * rng.standard_normal(shape)).astype(np.float32)
    whole = rng.standard_normal((2, rows, layers * features)).astype(np.float32)
    rows_there, projected = (device.upload(part).part(layer * features) for part in whole)
    f32, f16 = device.empty(shape, np.float32), device.empty(shape, np.float16)
    q = device.empty((2, *shape), np.int8)
    scale = device.empty((2, rows, features // 32), SCALE_DTYPE)
    device.launch(
        "rf_gate_per_layer",
        *(device.upload(gate), rows_there, projected, f32, f16, q, scale, rows * features),
        *(layers * features, features, 0.5**0.5),
        grid=(-(-features // 1024), rows),
        block=256,
    )
    own = whole.astype(np.float64).sum(axis=0)[:, layer * features : (layer + 1) * features]
    expected = ops.activate(gate.astype(np.float64), ActivationFunction.GELU_TANH)
    expected *= own * np.sqrt(0.5)
    check(f32.get(), expected, rtol=3e-6, atol=2e-6)
    check(f16.get(), expected, rtol=6e-4, atol=2e-6)
    values = QuantisedActivation(q.get(), scale.get()).values()
    check(values, expected, rtol=3e-6, atol=float(np.abs(expected).max()) * 0.51 / 127 / 254)
