"""rf_add_shared: the shared expert's result, weighted or not, added to that of the others."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import Device, check


@pytest.mark.parametrize("features", [64, 1032])
@pytest.mark.parametrize("has_router", [False, True])
def test_adds_the_shared_expert(device: Device, features: int, has_router: bool) -> None:
    rng = np.random.default_rng(1)
    mixed, values, x = rng.standard_normal((3, 3, features)).astype(np.float32)
    router = rng.standard_normal(features).astype(np.float32) / np.float32(np.sqrt(features))
    shared = device.upload(values, "shared")
    device.launch(
        "rf_add_shared",
        device.upload(mixed, "mixed"),
        shared,
        device.upload(x, "x"),
        device.upload(router, "router") if has_router else None,
        features,
        grid=3,
        block=256,
    )
    weight = 1 / (1 + np.exp(-(x.astype(np.float64) @ router))) if has_router else np.ones(3)
    check(shared.get(), mixed + weight[:, None] * values, rtol=1e-5, atol=1e-6)
