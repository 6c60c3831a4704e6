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
@pytest.mark.parametrize("has_shares", [False, True])
def test_adds_the_shared_expert(device: Device, features: int, has_shares: bool) -> None:
    rng = np.random.default_rng(1)
    mixed, values = rng.standard_normal((2, 3, features)).astype(np.float32)
    shares = rng.uniform(0, 1, 3).astype(np.float32) if has_shares else None
    shared = device.upload(values, "shared")
    device.launch(
        "rf_add_shared",
        device.upload(mixed, "mixed"),
        shared,
        None if shares is None else device.upload(shares, "shares"),
        features,
        grid=3,
        block=256,
    )
    factors = np.ones(3) if shares is None else shares.astype(np.float64)
    check(shared.get(), mixed + factors[:, None] * values, rtol=1e-6, atol=1e-7)


@ALL_SHAPES
@pytest.mark.parametrize(
    "given", ["", "shares", "first", "second", "post scale", "first second post scale shares"]
)
def test_the_sum_goes_into_the_residual(
    device: Device, rows: int, dim: int, threads: int, given: str
) -> None:
    mixed, shared, old = (random_rows(rows, dim, seed) for seed in (0, 1, 3))
    vectors = {
        name: np.random.default_rng(seed).uniform(0.5, 2, dim).astype(np.float32)
        for seed, name in enumerate(("first", "second", "post", "weight"), 5)
    }
    vectors["shares"] = np.linspace(0.2, 0.9, max(1, rows), dtype=np.float32)
    vectors["scale"] = np.array([0.37], np.float32)
    has = {*given.split(), "weight"}
    used = {name: device.upload(vector) for name, vector in vectors.items() if name in has}
    residual, out = device.upload(old), device.empty((rows, dim), np.float32)
    if rows:
        device.launch(
            "rf_add_shared_rms_norm",
            *(device.upload(mixed), used.get("first"), device.upload(shared), used.get("second")),
            *(used.get("shares"), residual, used.get("post"), used.get("scale")),
            *(used["weight"], out, None, None, None, 0, dim, EPS),
            grid=rows,
            block=threads,
        )

    def normed(values: Float64, name: str) -> Float64:
        if name not in has:
            return values
        return ops.rms_norm(values, vectors[name].astype(np.float64), EPS)

    share = vectors["shares"][:rows, None].astype(np.float64) if "shares" in has else 1.0
    first, second = mixed.astype(np.float64), shared.astype(np.float64)
    both = normed(first, "first") + share * normed(second, "second")
    factor = float(vectors["scale"][0]) if "scale" in has else 1.0
    total: Float64 = (old + normed(both, "post")) * factor
    check(residual.get(), total, rtol=1e-5, atol=2e-6)
    check(out.get(), normed(total, "weight"), rtol=1e-5, atol=2e-6)
