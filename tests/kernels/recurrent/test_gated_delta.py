"""rf_gated_delta: the recurrence of Gated DeltaNet, against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.recurrent import (
    BATCHES,
    CHUNKED,
    UNTOUCHED,
    Batch,
    Float64,
    wide,
)

EPS = 1e-6
CHUNK = 64
HALVES = 2e-3


@dataclass(frozen=True)
class Heads:
    """Sizes of a layer."""

    key_heads: int = 1
    value_heads: int = 2
    key_dim: int = 64
    value_dim: int = 32
    tiled: bool = False

    @property
    def columns(self) -> int:
        """Of queries, keys and values together."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def key_head(self, head: int) -> int:
        """Which keys a value head has."""
        if self.tiled:
            return head % self.key_heads
        return head // (self.value_heads // self.key_heads)


HEADS = {
    "one_part_of_values": Heads(),
    "grouped": Heads(key_heads=2, value_heads=4),
    "tiled": Heads(key_heads=2, value_heads=4, tiled=True),
    "few_keys": Heads(key_dim=36, value_dim=36),
}
QWEN = Heads(key_heads=2, value_heads=4, key_dim=128, value_dim=128, tiled=True)


@dataclass(frozen=True)
class Step:
    """A batch with the inputs of a layer."""

    heads: Heads
    qkv: Float64
    alpha: Float64
    beta: Float64
    decay: Float64
    dt_bias: Float64

    @classmethod
    def random(cls, batch: Batch, heads: Heads, seed: int = 3) -> Step:
        """States that are forgotten within a few to a few hundred tokens."""
        random = np.random.default_rng(seed)
        decay = -np.exp(random.uniform(-5, 0.5, heads.value_heads))
        return cls(
            heads,
            batch.random_rows(random, heads.columns).astype(np.float64),
            batch.random_rows(random, heads.value_heads).astype(np.float64),
            batch.random_rows(random, heads.value_heads).astype(np.float64),
            decay.astype(np.float32).astype(np.float64),
            random.standard_normal(heads.value_heads).astype(np.float32).astype(np.float64),
        )

    def run(self, rows: slice, states: Float64) -> tuple[Float64, Float64]:
        """Equation 10 of Yang et al., token by token: outputs and the last states."""
        heads, outputs, states = self.heads, [], states.copy()
        for token in range(rows.start, rows.stop):
            of_keys = heads.key_heads * heads.key_dim
            q, k, v = np.split(self.qkv[token], [of_keys, 2 * of_keys])
            q, k = (x.reshape(heads.key_heads, -1) for x in (q, k))
            q, k = (x / np.sqrt((x**2).sum(axis=1, keepdims=True) + EPS) for x in (q, k))
            v = v.reshape(heads.value_heads, -1)
            g = self.decay * np.log1p(np.exp(self.alpha[token] + self.dt_bias))
            beta = 1 / (1 + np.exp(-self.beta[token]))
            for head, state in enumerate(states):
                own_q, own_k = q[heads.key_head(head)], k[heads.key_head(head)]
                state *= np.exp(g[head])
                delta = beta[head] * (v[head] - state.T @ own_k)
                state += np.outer(own_k, delta)
                outputs.append(state.T @ own_q * heads.key_dim**-0.5)
        shape = (rows.stop - rows.start, heads.value_heads, heads.value_dim)
        return np.array(outputs).reshape(shape), states


class Launch:
    """The arrays of a launch: inputs, states, results, and what those have to be."""

    def __init__(self, device: Device, batch: Batch, heads: Heads) -> None:
        self.device, self.batch, self.heads = device, batch, heads
        step = Step.random(batch, heads)
        sizes = heads.value_heads, heads.key_dim, heads.value_dim
        states = batch.random_states(np.random.default_rng(4), *sizes)
        self.state = device.upload(states, "state")
        shape = (batch.rows, heads.value_heads, heads.value_dim)
        self.out = device.upload(np.full(shape, UNTOUCHED, np.float32), "out")
        self.strides = heads.columns + 4, heads.value_heads + 1, heads.value_heads + 3
        inputs = zip((step.qkv, step.alpha, step.beta), self.strides, strict=True)
        self.gates = [device.upload(wide(x, stride)) for x, stride in inputs]
        self.rates = [device.upload(x.astype(np.float32)) for x in (step.decay, step.dt_bias)]
        self.arrays = batch.arrays(device)
        self.expected = np.full(shape, UNTOUCHED)
        self.next_states = batch.run(step.run, states, self.expected)

    def one_by_one(self) -> None:
        """Takes token after token."""
        heads = self.heads
        self.device.launch(
            "rf_gated_delta",
            *(*self.gates, *self.rates, *self.arrays, self.state, self.out),
            *self.strides,
            *(heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim),
            *(int(heads.tiled), EPS),
            grid=(-(-heads.value_dim // 32), heads.value_heads, len(self.batch.taken)),
            block=128,
        )
        check(self.out.get(), self.expected, rtol=1e-4, atol=1e-5)
        check(self.state.get(), self.next_states, rtol=1e-4, atol=1e-5)

    def in_chunks(self, kernel: str = "rf_gated_delta_chunks", columns: int = 32) -> None:
        """Takes 64 tokens at a time; blocks of the kernel have so many columns of a state."""
        device, heads, batch = self.device, self.heads, self.batch
        chunks = batch.rows // CHUNK + len(batch.taken)
        of_keys, of_values = chunks * heads.key_heads * CHUNK, chunks * heads.value_heads * CHUNK
        halves = [of_keys * 128] * 3 + [of_values * CHUNK] * 2
        scratch = [
            *(device.empty(count, np.float16) for count in halves),
            device.empty(2 * of_values, np.float32),
        ]
        sizes = heads.key_heads, heads.value_heads, int(heads.tiled)
        block = 4 * device.wave
        device.launch(
            "rf_gated_delta_solve",
            *(*self.gates, *self.rates, *self.arrays, *scratch),
            *(*self.strides, *sizes, EPS),
            grid=(heads.value_heads, -(-batch.longest // CHUNK), len(batch.taken)),
            block=block,
        )
        device.launch(
            kernel,
            *(self.gates[0], *self.arrays, *scratch, self.state, self.out),
            *(self.strides[0], *sizes),
            grid=(128 // columns, heads.value_heads, len(batch.taken)),
            block=block,
        )
        check(self.out.get(), self.expected, rtol=HALVES, atol=HALVES * 0.3)
        check(self.state.get(), self.next_states, rtol=HALVES, atol=HALVES)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_each_sequence_goes_on_from_its_state(device: Device, batch: Batch) -> None:
    Launch(device, batch, HEADS["one_part_of_values"]).one_by_one()


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_value_heads_find_their_keys(device: Device, heads: Heads) -> None:
    Launch(device, BATCHES["some_are_taken"], heads).one_by_one()


def test_heads_as_qwen_has_them(device: Device) -> None:
    Launch(device, BATCHES["decodes"], QWEN).one_by_one()


@pytest.mark.parametrize("batch", CHUNKED.values(), ids=CHUNKED.keys())
def test_chunks_do_what_their_tokens_would_do(device: Device, batch: Batch) -> None:
    Launch(device, batch, Heads(value_heads=1, key_dim=128, value_dim=128)).in_chunks()


def test_chunks_keep_small_products_of_queries_and_keys(device: Device) -> None:
    """Halves of which would count as zero on MI200; the limit is that of `rocmforge verify`."""
    heads = Heads(value_heads=1, key_dim=128, value_dim=128)
    launch = Launch(device, CHUNKED["one_token_more"], heads)
    launch.in_chunks()
    there = launch.expected != UNTOUCHED
    errors = np.abs(launch.out.get() - launch.expected)[there]
    assert errors.max() < 1e-3 * np.abs(launch.expected[there]).max()


@pytest.mark.parametrize("tiled", [False, True])
def test_chunks_of_value_heads_find_their_keys(device: Device, tiled: bool) -> None:
    Launch(device, BATCHES["decodes"], replace(QWEN, tiled=tiled)).in_chunks()


@pytest.mark.parametrize("batch", CHUNKED.values(), ids=CHUNKED.keys())
def test_narrow_blocks_have_the_same_bits(device: Device, batch: Batch) -> None:
    heads = Heads(value_heads=1, key_dim=128, value_dim=128)
    wide, narrow = Launch(device, batch, heads), Launch(device, batch, heads)
    wide.in_chunks()
    narrow.in_chunks("rf_gated_delta_chunks_c16", columns=16)
    np.testing.assert_array_equal(narrow.out.get(), wide.out.get())
    np.testing.assert_array_equal(narrow.state.get(), wide.state.get())
