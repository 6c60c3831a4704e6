"""rf_mamba: the recurrence of Mamba-2, against float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.kernels import Device, check
from tests.support.recurrent import BATCHES, NO_SLOT, UNTOUCHED, Batch, Float64, wide

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


def check_step(device: Device, batch: Batch, sizes: Heads) -> None:
    step = Step.random(batch, sizes)
    states = batch.random_states(
        np.random.default_rng(4), sizes.heads, sizes.head_dim, sizes.state_size
    )
    there = device.upload(states, "state")
    shape = (batch.rows, sizes.heads, sizes.head_dim)
    out = device.upload(np.full(shape, UNTOUCHED, np.float32), "out")
    strides = sizes.columns + 4, sizes.heads + 1
    device.launch(
        "rf_mamba",
        *(device.upload(wide(x, w)) for x, w in zip((step.x_bc, step.dt), strides, strict=True)),
        *(device.upload(x.astype(np.float32)) for x in (step.a, step.d, step.dt_bias)),
        *batch.arrays(device),
        *(there, out, *strides, sizes.heads, sizes.head_dim, sizes.groups, sizes.state_size),
        grid=(-(-sizes.head_dim // ROWS), sizes.heads, len(batch.taken)),
        block=128,
    )
    expected, next_states = np.full(shape, UNTOUCHED), states.astype(np.float64)
    for part, rows in batch.of_taken():
        expected[rows], after = step.run(rows, batch.first_state(part, states))
        if part.slot != NO_SLOT and part.tokens:
            next_states[part.slot] = after
    check(out.get(), expected, rtol=1e-4, atol=3e-5)
    check(there.get(), next_states, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_each_sequence_goes_on_from_its_state(device: Device, batch: Batch) -> None:
    check_step(device, batch, HEADS["small"])


@pytest.mark.parametrize("sizes", HEADS.values(), ids=HEADS.keys())
def test_heads_of_a_group_share_what_they_read(device: Device, sizes: Heads) -> None:
    check_step(device, BATCHES["some_are_taken"], sizes)
