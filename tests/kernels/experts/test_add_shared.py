"""rf_add_shared{,_rms_norm}: the shared expert's result added to that of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check
from tests.support.operands.norms import ALL_SHAPES, random_rows

EPS = 1e-5

Float64 = npt.NDArray[Any]


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


@ALL_SHAPES
@pytest.mark.parametrize(
    "given", ["", "router", "first", "second", "post scale", "first second post scale router"]
)
def test_the_sum_goes_into_the_residual(
    device: Device, rows: int, dim: int, threads: int, given: str
) -> None:
    mixed, shared, x, old = (random_rows(rows, dim, seed) for seed in range(4))
    vectors = {
        name: np.random.default_rng(seed).uniform(0.5, 2, dim).astype(np.float32)
        for seed, name in enumerate(("first", "second", "post", "weight"), 5)
    }
    vectors["router"] = random_rows(1, dim, 9)[0] / np.float32(np.sqrt(dim))
    vectors["scale"] = np.array([0.37], np.float32)
    has = {*given.split(), "weight"}
    used = {name: device.upload(vector) for name, vector in vectors.items() if name in has}
    # The norm takes the place of what the router reads.
    residual, out = device.upload(old), device.upload(x)
    if rows:
        device.launch(
            "rf_add_shared_rms_norm",
            *(device.upload(mixed), used.get("first"), device.upload(shared), used.get("second")),
            *(out, used.get("router"), residual, used.get("post"), used.get("scale")),
            *(used["weight"], out, None, None, None, 0, dim, EPS),
            grid=rows,
            block=threads,
        )

    def normed(values: Float64, name: str) -> Float64:
        if name not in has:
            return values
        return ops.rms_norm(values, vectors[name].astype(np.float64), EPS)

    share = np.ones((rows, 1))
    if "router" in has:
        share = 1 / (1 + np.exp(-(x.astype(np.float64) @ vectors["router"])[:, None]))
    first, second = mixed.astype(np.float64), shared.astype(np.float64)
    both = normed(first, "first") + share * normed(second, "second")
    factor = float(vectors["scale"][0]) if "scale" in has else 1.0
    total: Float64 = (old + normed(both, "post")) * factor
    check(residual.get(), total, rtol=1e-5, atol=2e-6)
    check(out.get(), normed(total, "weight"), rtol=1e-5, atol=2e-6)
