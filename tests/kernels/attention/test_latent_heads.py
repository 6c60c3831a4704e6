"""rf_latent_{absorb,expand}_*: what other launches do one after the other, at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernels.table import read_formats
from tests.support.launches.kernels import Device
from tests.support.operands.activations import SCALE_DTYPE as ACT_SCALE
from tests.support.operands.experts import random_experts

MIXED = [format.name for format in read_formats() if format.is_mixed]
EPS = 1e-6
HEADS = 3
RANK, ROTARY, PLAIN, VALUE = 512, 64, 256, 96
BLOCK_TOKENS, NUM_BLOCKS, CONTEXT = 32, 2, 50
GAP = 4  # elements behind each row
THREADS = 256

Array = npt.NDArray[Any]


def normal(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


class Queries:
    """What queries and rows of the cache are made of; the last of several tokens is padding."""

    def __init__(self, device: Device, name: str, tokens: int, kind: str, neox: int) -> None:
        rng = np.random.default_rng(tokens)
        self.device, self.name, self.tokens, self.kind, self.neox = device, name, tokens, kind, neox
        self.matrices = device.upload(random_experts(rng, HEADS, name, RANK, PLAIN).packed())
        self.q = device.upload(normal(tokens, HEADS * (PLAIN + ROTARY) + GAP))
        self.kv = device.upload(normal(tokens, RANK + ROTARY + GAP))
        self.norm = device.upload(normal(RANK))
        angles = rng.uniform(0, 6, (CONTEXT, ROTARY // 2)).astype(np.float32)
        self.tables = device.upload(np.cos(angles)), device.upload(np.sin(angles))
        self.positions = device.upload(rng.permutation(CONTEXT)[:tokens].astype(np.int32))
        slots = rng.permutation(NUM_BLOCKS * BLOCK_TOKENS)[:tokens].astype(np.int64)
        if tokens > 1:
            slots[-1] = -1
        self.slots = device.upload(slots)

    def results(self) -> tuple[Any, ...]:
        """Queries, the cache and its scales, heads and weights of pairs."""
        slots, stored = NUM_BLOCKS * BLOCK_TOKENS, np.int8 if self.kind == "int8" else np.float16
        pairs = self.tokens * HEADS
        return (
            self.device.empty((pairs, ROTARY + RANK), np.float16),
            self.device.upload(np.full((slots, RANK + ROTARY), 5, stored)),
            self.device.upload(np.full(slots, 5, np.float32)) if self.kind == "int8" else None,
            self.device.empty(pairs, np.int32),
            self.device.empty(pairs, np.float32),
        )

    def at_once(self) -> tuple[Any, ...]:
        rows, cache, scale, chosen, weights = found = self.results()
        self.device.launch(
            f"rf_latent_absorb_{self.name}",
            *(self.matrices, self.q, self.kv, self.norm, *self.tables, self.positions, self.slots),
            *(rows, cache, scale, chosen, weights, self.matrices.get().nbytes // HEADS),
            *(self.q.get().shape[1], self.kv.get().shape[1], HEADS, PLAIN, ROTARY, RANK),
            *(self.neox, EPS),
            grid=(self.tokens * HEADS, RANK // 16 + 2),
            block=64,
        )
        return found

    def one_by_one(self) -> tuple[Any, ...]:
        rows, cache, scale, chosen, weights = found = self.results()
        pairs, device = self.tokens * HEADS, self.device
        device.launch(
            f"rf_latent_store_{self.kind}",
            *(self.kv, self.norm, *self.tables, self.positions, self.slots, cache),
            *((scale,) if scale is not None else ()),
            *(self.kv.get().shape[1], RANK, ROTARY, self.neox, EPS),
            grid=self.tokens,
            block=device.wave,
        )
        plain = device.empty((pairs, PLAIN), np.float32)
        device.launch(
            "rf_latent_queries",
            *(self.q, *self.tables, self.positions, plain, None, rows, chosen, weights),
            *(self.q.get().shape[1], HEADS, PLAIN, ROTARY, RANK, self.neox),
            grid=(self.tokens, 1),
            block=THREADS,
        )
        products = device.empty((pairs, RANK), np.float32)
        multiply(
            device, self.name, self.matrices, rounded(device, plain), products, chosen, weights
        )
        device.launch(
            "rf_join_heads",
            *(products, None, rows, pairs, RANK, ROTARY + RANK, ROTARY),
            grid=pairs * RANK // 4 // THREADS + 1,
            block=THREADS,
        )
        return found


def rounded(device: Device, x: Any) -> tuple[Any, Any]:
    rows, columns = x.get().shape
    q = device.empty((rows, columns), np.int8)
    scale = device.empty((rows, columns // 32), ACT_SCALE)
    device.launch(
        "rf_quantize_act",
        *(x, q, scale, 0, rows * columns),
        grid=-(-rows * columns // 1024),
        block=THREADS,
    )
    return q, scale


def multiply(
    device: Device, name: str, matrices: Any, x: tuple[Any, Any], out: Any, chosen: Any, ones: Any
) -> None:
    (pairs, columns), (_, rows) = x[0].get().shape, out.get().shape
    device.launch(
        f"rf_experts_down_{name}_s1",
        *(matrices, None, *x, chosen, ones, None, out, matrices.get().nbytes // HEADS),
        *(pairs, 1, rows, columns // 32),
        grid=(pairs, rows // 16),
        block=64 if columns < 512 else 128,
    )


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize(("kind", "neox"), [("f16", 0), ("int8", 1)])
@pytest.mark.parametrize("name", MIXED)
def test_queries_and_rows_of_the_cache_have_the_same_bits(
    device: Device, name: str, kind: str, neox: int, tokens: int
) -> None:
    queries = Queries(device, name, tokens, kind, neox)
    for found, expected in zip(queries.at_once(), queries.one_by_one(), strict=True):
        if expected is not None:
            np.testing.assert_array_equal(found.get(), expected.get())


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("name", MIXED)
def test_results_of_heads_have_the_same_bits(device: Device, name: str, tokens: int) -> None:
    pairs, rng = tokens * HEADS, np.random.default_rng(tokens)
    matrices = device.upload(random_experts(rng, HEADS, name, VALUE, RANK).packed())
    q, scale = rounded(device, device.upload(normal(pairs, RANK)))
    f32, expected = (device.empty((pairs, VALUE), np.float32) for _ in range(2))
    int8, scales = device.empty((pairs, VALUE), np.int8), device.empty((pairs, 3), ACT_SCALE)
    device.launch(
        f"rf_latent_expand_{name}",
        *(matrices, q, scale, f32, None, int8, scales, 0, matrices.get().nbytes // HEADS),
        *(HEADS, VALUE, RANK // 32),
        grid=(pairs, VALUE // 32),
        block=256,
    )
    chosen = device.upload(np.tile(np.arange(HEADS, dtype=np.int32), tokens))
    ones = device.upload(np.ones(pairs, np.float32))
    multiply(device, name, matrices, (q, scale), expected, chosen, ones)
    np.testing.assert_array_equal(f32.get(), expected.get())
    for found, wanted in zip((int8, scales), rounded(device, expected), strict=True):
        np.testing.assert_array_equal(found.get(), wanted.get())
