"""rf_latent_*, rf_join_heads: around the products of latent attention, against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.models.rope_config import RopeStyle
from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check

BLOCK_TOKENS = 32
NUM_BLOCKS = 3
CONTEXT = 50
EPS = 1e-6
TOKENS = 5
PADDING = 3
GAP = 4
THREADS = 256

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    heads: int = 3
    rank: int = 512
    plain_dim: int = 128
    rotary_dim: int = 64
    style: RopeStyle = RopeStyle.NORMAL


CASES = {
    "deepseek": Case(),
    "glm": Case(heads=20, plain_dim=192),
    "neox": Case(style=RopeStyle.NEOX),
    "small": Case(heads=1, rank=40, plain_dim=12, rotary_dim=8),
    "ragged": Case(heads=9, rank=72, plain_dim=36, rotary_dim=6, style=RopeStyle.NEOX),
}
BY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


class Inputs:
    """Random arguments; one token is padding. Rows of q and kv lie `GAP` elements apart."""

    def __init__(self, case: Case) -> None:
        self.random = np.random.default_rng(7)
        queries = case.heads * (case.plain_dim + case.rotary_dim)
        self.wide_q = self.normal(TOKENS, queries + GAP)
        self.wide_kv = self.normal(TOKENS, case.rank + case.rotary_dim + GAP)
        self.q, self.kv = self.wide_q[:, :-GAP], self.wide_kv[:, :-GAP]
        self.norm = self.normal(case.rank)
        self.positions = self.random.permutation(CONTEXT)[:TOKENS].astype(np.int32)
        self.slots = self.random.permutation(NUM_BLOCKS * BLOCK_TOKENS)[:TOKENS].astype(np.int64)
        self.slots[PADDING] = -1
        angles = self.random.uniform(0, 6, (CONTEXT, case.rotary_dim // 2))
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def normal(self, *shape: int) -> npt.NDArray[np.float32]:
        return self.random.standard_normal(shape).astype(np.float32)

    def rotated(self, x: Array, style: RopeStyle) -> Array:
        """[T, heads, rotary_dim] in float64."""
        cos, sin = (table[self.positions].astype(np.float64) for table in (self.cos, self.sin))
        return ops.rope(x.astype(np.float64), cos, sin, style)


@pytest.mark.parametrize("half", [False, True], ids=["f32", "f16"])
@BY_CASE
def test_queries_come_apart(device: Device, case: Case, half: bool) -> None:
    inputs = Inputs(case)
    pairs = TOKENS * case.heads
    plain = device.empty((pairs, case.plain_dim), np.float16 if half else np.float32, "plain")
    rows = device.upload(np.full((pairs, case.rotary_dim + case.rank), 7, np.float16), "rows")
    chosen, weights = device.empty(pairs, np.int32), device.empty(pairs, np.float32)
    waves = THREADS // device.wave
    device.launch(
        "rf_latent_queries",
        *(device.upload(x) for x in (inputs.wide_q, inputs.cos, inputs.sin, inputs.positions)),
        *((None, plain) if half else (plain, None)),
        *(rows, chosen, weights, inputs.wide_q.shape[1]),
        *(case.heads, case.plain_dim, case.rotary_dim, case.rank),
        int(case.style is RopeStyle.NEOX),
        grid=(TOKENS, -(-case.heads // waves)),
        block=THREADS,
    )
    queries = inputs.q.reshape(TOKENS, case.heads, -1)
    exact = queries[..., : case.plain_dim].reshape(pairs, -1)
    np.testing.assert_array_equal(plain.get(), exact.astype(np.float16) if half else exact)
    expected = inputs.rotated(queries[..., case.plain_dim :], case.style).reshape(pairs, -1)
    found = rows.get().astype(np.float64)
    check(found[:, : case.rotary_dim], expected, rtol=1e-3, atol=1e-3)
    assert (found[:, case.rotary_dim :] == 7).all()
    assert chosen.get().tolist() == [*range(case.heads)] * TOKENS
    assert (weights.get() == 1).all()


@pytest.mark.parametrize("kind", ["f16", "int8"])
@BY_CASE
def test_tokens_get_their_rows_of_the_cache(device: Device, case: Case, kind: str) -> None:
    inputs = Inputs(case)
    dim, slots = case.rank + case.rotary_dim, NUM_BLOCKS * BLOCK_TOKENS
    stored = np.int8 if kind == "int8" else np.float16
    cache = device.upload(np.full((slots, dim), 5, stored), "cache")
    scale = device.upload(np.full(slots, 5, np.float32), "scale")
    device.launch(
        f"rf_latent_store_{kind}",
        *(device.upload(x) for x in (inputs.wide_kv, inputs.norm, inputs.cos, inputs.sin)),
        *(device.upload(inputs.positions), device.upload(inputs.slots), cache),
        *([scale] if kind == "int8" else []),
        *(inputs.wide_kv.shape[1], case.rank, case.rotary_dim),
        *(int(case.style is RopeStyle.NEOX), EPS),
        grid=TOKENS,
        block=device.wave,
    )
    wide, norm = inputs.kv.astype(np.float64), inputs.norm.astype(np.float64)
    latent = ops.rms_norm(wide[:, : case.rank], norm, EPS)
    rotated = inputs.rotated(wide[:, None, case.rank :], case.style)[:, 0]
    kept = np.flatnonzero(inputs.slots >= 0)
    expected = np.concatenate([rotated, latent], axis=1)[kept]
    rows, scales = cache.get().astype(np.float64), scale.get()
    found = rows[inputs.slots[kept]]
    if kind == "int8":
        factors = scales[inputs.slots[kept]][:, None]
        check(factors[:, 0], np.abs(expected).max(axis=1) / 127, rtol=1e-5)
        assert np.abs(found - expected / factors).max() < 0.51
    else:
        check(found, expected, rtol=1e-3, atol=1e-3)
    others = np.setdiff1d(np.arange(slots), inputs.slots)
    assert (rows[others] == 5).all()
    assert (scales[others] == 5).all()


@pytest.mark.parametrize("sorted_rows", [False, True])
@pytest.mark.parametrize(("rows", "columns", "offset"), [(1, 4, 0), (37, 512, 64), (300, 32, 0)])
def test_products_of_heads_come_together(
    device: Device, rows: int, columns: int, offset: int, sorted_rows: bool
) -> None:
    random = np.random.default_rng(3)
    x = random.standard_normal((rows, columns)).astype(np.float32)
    places = random.permutation(rows).astype(np.int32)
    stride = offset + columns + 8
    out = device.upload(np.full((rows, stride), 3, np.float16), "out")
    device.launch(
        "rf_join_heads",
        device.upload(x),
        device.upload(places) if sorted_rows else None,
        *(out, rows, columns, stride, offset),
        grid=-(-rows * columns // 4 // THREADS),
        block=THREADS,
    )
    found = out.get()
    expected = (x[places] if sorted_rows else x).astype(np.float16)
    np.testing.assert_array_equal(found[:, offset : offset + columns], expected)
    assert (found[:, :offset] == 3).all()
    assert (found[:, offset + columns :] == 3).all()
