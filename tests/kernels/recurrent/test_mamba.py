"""rf_mamba: the recurrence of Mamba-2, against float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.launches.kernels import Device, check
from tests.support.operands.recurrent import BATCHES, CHUNKED, UNTOUCHED, Batch, Float64, wide

CHUNK = 64
HALVES = 1e-3
ROWS = 32  # of a head, in a block


@dataclass(frozen=True)
class Heads:
    """Sizes of a layer."""

    heads: int = 2
    head_dim: int = 20
    groups: int = 1
    state_size: int = 32

    @property
    def columns(self) -> int:
        """Of x, B and C together."""
        return self.heads * self.head_dim + 2 * self.groups * self.state_size


HEADS = {
    "small": Heads(),
    "groups": Heads(heads=4, groups=2, state_size=36),
    "nemotron": Heads(heads=2, head_dim=64, groups=2, state_size=128),
}


@dataclass(frozen=True)
class Step:
    """A batch with the inputs of a layer."""

    heads: Heads
    x_bc: Float64
    dt: Float64
    a: Float64
    d: Float64
    dt_bias: Float64

    @classmethod
    def random(cls, batch: Batch, heads: Heads, seed: int = 3) -> Step:
        """States that are forgotten within a few to a few hundred tokens."""
        random = np.random.default_rng(seed)
        vectors = (
            -np.exp(random.uniform(-5, 0.5, heads.heads)),
            random.standard_normal(heads.heads),
            random.standard_normal(heads.heads),
        )
        return cls(
            heads,
            batch.random_rows(random, heads.columns).astype(np.float64),
            batch.random_rows(random, heads.heads).astype(np.float64),
            *(x.astype(np.float32).astype(np.float64) for x in vectors),
        )

    def run(self, rows: slice, states: Float64) -> tuple[Float64, Float64]:
        """The recurrence of Dao and Gu, token by token: outputs and the last states."""
        sizes, outputs, states = self.heads, [], states.copy()
        inner, of_state = sizes.heads * sizes.head_dim, sizes.groups * sizes.state_size
        for token in range(rows.start, rows.stop):
            x, b, c = np.split(self.x_bc[token], [inner, inner + of_state])
            x = x.reshape(sizes.heads, -1)
            b, c = (each.reshape(sizes.groups, -1) for each in (b, c))
            dt = np.log1p(np.exp(self.dt[token] + self.dt_bias))
            for head, state in enumerate(states):
                group = head // (sizes.heads // sizes.groups)
                state *= np.exp(dt[head] * self.a[head])
                state += dt[head] * np.outer(x[head], b[group])
                outputs.append(state @ c[group] + self.d[head] * x[head])
        return np.array(outputs).reshape(-1, sizes.heads, sizes.head_dim), states


class Launch:
    """The arrays of a launch: inputs, states, results, and what those have to be."""

    def __init__(self, device: Device, batch: Batch, sizes: Heads) -> None:
        self.device, self.batch, self.sizes = device, batch, sizes
        step = Step.random(batch, sizes)
        of_state = sizes.heads, sizes.head_dim, sizes.state_size
        states = batch.random_states(np.random.default_rng(4), *of_state)
        self.state = device.upload(states, "state")
        shape = (batch.rows, sizes.heads, sizes.head_dim)
        self.out = device.upload(np.full(shape, UNTOUCHED, np.float32), "out")
        self.strides = sizes.columns + 4, sizes.heads + 1
        inputs = zip((step.x_bc, step.dt), self.strides, strict=True)
        self.inputs = [device.upload(wide(x, stride)) for x, stride in inputs]
        vectors = step.a, step.d, step.dt_bias
        self.a, self.d, self.dt_bias = (device.upload(x.astype(np.float32)) for x in vectors)
        self.arrays = batch.arrays(device)
        self.expected = np.full(shape, UNTOUCHED)
        self.next_states = batch.run(step.run, states, self.expected)

    def one_by_one(self) -> None:
        """Takes token after token."""
        sizes = self.sizes
        self.device.launch(
            "rf_mamba",
            *(*self.inputs, self.a, self.d, self.dt_bias, *self.arrays, self.state, self.out),
            *(*self.strides, sizes.heads, sizes.head_dim, sizes.groups, sizes.state_size),
            grid=(-(-sizes.head_dim // ROWS), sizes.heads, len(self.batch.taken)),
            block=128,
        )
        check(self.out.get(), self.expected, rtol=1e-4, atol=3e-5)
        check(self.state.get(), self.next_states, rtol=1e-4, atol=1e-5)

    def in_chunks(self, kernel: str = "rf_mamba_chunks", rows: int = 32) -> None:
        """Takes 64 tokens at a time; blocks of the kernel have so many rows of a state."""
        device, sizes, batch = self.device, self.sizes, self.batch
        chunks = batch.rows // CHUNK + len(batch.taken)
        of_groups, of_heads = chunks * sizes.groups * CHUNK, chunks * sizes.heads * CHUNK
        scratch = [
            *(device.empty(of_groups * 128, np.float16) for _ in range(2)),
            device.empty(of_heads * CHUNK, np.float16),
            device.empty(2 * of_heads, np.float32),
        ]
        of_layer = sizes.heads, sizes.head_dim, sizes.groups
        block = 4 * device.wave
        device.launch(
            "rf_mamba_scores",
            *(*self.inputs, self.a, self.dt_bias, *self.arrays, *scratch),
            *(*self.strides, *of_layer),
            grid=(sizes.heads, -(-batch.longest // CHUNK), len(batch.taken)),
            block=block,
        )
        device.launch(
            kernel,
            *(self.inputs[0], self.d, *self.arrays, *scratch, self.state, self.out),
            *(self.strides[0], *of_layer),
            grid=(sizes.head_dim // rows, sizes.heads, len(batch.taken)),
            block=block,
        )
        largest = np.abs(self.expected[self.expected != UNTOUCHED]).max()
        check(self.out.get(), self.expected, atol=HALVES * largest)
        check(self.state.get(), self.next_states, atol=HALVES * np.nanmax(np.abs(self.next_states)))


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_each_sequence_goes_on_from_its_state(device: Device, batch: Batch) -> None:
    Launch(device, batch, HEADS["small"]).one_by_one()


@pytest.mark.parametrize("sizes", HEADS.values(), ids=HEADS.keys())
def test_heads_of_a_group_share_what_they_read(device: Device, sizes: Heads) -> None:
    Launch(device, BATCHES["some_are_taken"], sizes).one_by_one()


@pytest.mark.parametrize("batch", CHUNKED.values(), ids=CHUNKED.keys())
def test_chunks_do_what_their_tokens_would_do(device: Device, batch: Batch) -> None:
    sizes = Heads(heads=1, head_dim=32, state_size=128)
    Launch(device, batch, sizes).in_chunks()


def test_chunks_of_heads_share_what_they_read(device: Device) -> None:
    sizes = Heads(heads=4, head_dim=64, groups=2, state_size=128)
    Launch(device, BATCHES["some_are_taken"], sizes).in_chunks()


@pytest.mark.parametrize("batch", CHUNKED.values(), ids=CHUNKED.keys())
def test_narrow_blocks_have_the_same_bits(device: Device, batch: Batch) -> None:
    sizes = Heads(heads=1, head_dim=32, state_size=128)
    wide, narrow = Launch(device, batch, sizes), Launch(device, batch, sizes)
    wide.in_chunks()
    narrow.in_chunks("rf_mamba_chunks_c16", rows=16)
    np.testing.assert_array_equal(narrow.out.get(), wide.out.get())
    np.testing.assert_array_equal(narrow.state.get(), wide.state.get())
