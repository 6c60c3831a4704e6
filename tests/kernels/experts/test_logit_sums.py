"""rf_gemv_deferred_route*: what blocks of a product add to the sums of a router's logits."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge_hip.weights.formats import FORMAT_NUMBERS
from tests.support.launches.kernels import Device
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.linear import random_activation, random_layer

STEPS = 2**30  # of 1


@pytest.mark.parametrize(
    ("kind", "threads", "name", "features", "logits"),
    [
        ("", 512, "q4_k", 96, 129),
        ("", 128, "q8_0", 32, 5),
        ("", 128, "q8_0", 64, 70),
        ("", 512, "q6_k", 2144, 70),
        ("_unmixed", 128, "q4_0", 96, 70),
        ("_unmixed", 512, "iq2_s", 64, 129),
        ("_stream", 256, "q8_0", 96, 513),
        ("_stream", 256, "q4_k", 320, 33),
    ],
)
def test_blocks_add_what_a_router_makes_of_their_columns(
    device: Device, kind: str, threads: int, name: str, features: int, logits: int
) -> None:
    """And the product is that without a router."""
    if not device.has(f"rf_gemv_deferred_route{kind}"):
        pytest.skip("this target has no such kernels")
    rng = np.random.default_rng(3)
    layer = random_layer(rng, name, features, 512)
    x = quantise(random_activation(rng, 1, 512), 1)
    operands = [device.upload(each) for each in (layer.packed(), x.q, x.scales)]
    norm, old = rng.standard_normal((2, features), np.float32)
    router = rng.standard_normal((logits, features), np.float32)
    weight, of_router = device.upload(norm), device.upload(router)
    sums = device.upload(np.zeros(logits, np.int64))
    found = []
    for more, routed in ((), ""), ((of_router, sums, logits), "_route"):
        residual, q = device.upload(old), device.empty((1, features), np.int8)
        scale = device.empty((features // 32,), SCALE_DTYPE)
        squares = device.empty((features // 32,), np.float32)
        device.launch(
            f"rf_gemv_deferred{routed}{kind}",
            *(*operands, None, features, layer.quant_blocks, FORMAT_NUMBERS[name]),
            *(residual, weight, q, scale, squares, *more),
            grid=features // 32,
            block=threads,
        )
        found.append([array.get().tobytes() for array in (residual, q, scale, squares)])
    assert found[1] == found[0]
    exact = router.astype(np.float64) @ (residual.get().reshape(-1).astype(np.float64) * norm)
    np.testing.assert_allclose(sums.get() / STEPS, exact, rtol=1e-5, atol=1e-4)


def test_parts_without_end_leave_room_for_the_others(device: Device) -> None:
    """What is too large counts as 2^23, and what is not a number as the least."""
    features, logits = 96, 4
    layer = random_layer(np.random.default_rng(5), "q8_0", features, 32)
    x = quantise(np.zeros((1, 32), np.float32), 1)
    old = np.ones(features, np.float32)
    old[40] = 1e30  # of the second block
    router = np.zeros((logits, features), np.float32)
    router[:3, 40] = 1, -1, np.nan
    router[:, 80] = 3
    sums = device.upload(np.zeros(logits, np.int64))
    device.launch(
        "rf_gemv_deferred_route",
        *(device.upload(each) for each in (layer.packed(), x.q, x.scales)),
        *(None, features, layer.quant_blocks, FORMAT_NUMBERS["q8_0"], device.upload(old)),
        *(device.upload(np.ones(features, np.float32)), device.empty((1, features), np.int8)),
        *(device.empty((3,), SCALE_DTYPE), device.empty((3,), np.float32)),
        *(device.upload(router), sums, logits),
        grid=3,
        block=128,
    )
    most = 2**23
    assert (sums.get() / STEPS).tolist() == [most + 3, 3 - most, 3 - most, 3]
