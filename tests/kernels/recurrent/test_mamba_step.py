"""rf_mamba_step: the bits of convolution, recurrence and maybe a gated norm in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.recurrent import DECODES, UNTOUCHED, Batch, wide

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Heads:
    """Sizes of a layer."""

    heads: int = 4
    head_dim: int = 20
    groups: int = 2
    state_size: int = 32
    width: int = 4
    has_bias: bool = True

    @property
    def channels(self) -> int:
        """Of the convolution."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def inner(self) -> int:
        """The features of all heads."""
        return self.heads * self.head_dim

    @property
    def norm_threads(self) -> int:
        """Of blocks that norm a group."""
        return 64 * -(-self.inner // self.groups // (256 if self.inner < 1024 else 1024))


HEADS = {
    "small": Heads(),
    "one_group": Heads(heads=6, groups=1, has_bias=False),
    "one_head_each": Heads(heads=3, groups=3, width=3),
    "nemotron": Heads(heads=4, head_dim=64, state_size=128),
    "most": Heads(heads=2, head_dim=128, groups=1, state_size=128, width=2),
    # Threads norm four elements several times.
    "long_group": Heads(heads=20, head_dim=64, groups=1),
}
EPS = 1e-3  # so large that it counts


class Layer:
    """The inputs of a layer, and what each way to launch it makes of them."""

    def __init__(self, device: Device, batch: Batch, heads: Heads) -> None:
        self.device, self.batch, self.heads = device, batch, heads
        random = np.random.default_rng(6)

        def vector(*shape: int) -> DeviceArray:
            return device.upload(random.standard_normal(shape).astype(np.float32))

        def rows(columns: int, behind: int) -> DeviceArray:
            return device.upload(wide(batch.random_rows(random, columns), columns + behind))

        self.x, self.dt = rows(heads.channels, 4), rows(heads.heads, 1)
        self.filter = vector(heads.channels, heads.width)
        self.bias = vector(heads.channels) if heads.has_bias else None
        a = -np.exp(random.uniform(-5, 0.5, heads.heads)).astype(np.float32)
        self.rates = device.upload(a), vector(heads.heads), vector(heads.heads)
        self.states = [
            batch.random_states(random, heads.width - 1, heads.channels),
            batch.random_states(random, heads.heads, heads.head_dim, heads.state_size),
        ]
        self.arrays = batch.arrays(device)
        self.z, self.norm = rows(heads.inner, 4), vector(heads.inner)
        self.sizes = heads.heads, heads.head_dim, heads.groups, heads.state_size

    def new(self) -> tuple[DeviceArray, ...]:
        """States as before, and the place of results."""
        shape = self.batch.rows, self.heads.heads, self.heads.head_dim
        arrays = *self.states, np.full(shape, UNTOUCHED, np.float32)
        names = "inputs", "state", "out"
        pairs = zip(arrays, names, strict=True)
        return tuple(self.device.upload(values, name) for values, name in pairs)

    def normed(self) -> list[DeviceArray]:
        """Where norms go: float32, int8 and scales."""
        shape = self.batch.rows, self.heads.inner
        arrays = [np.full(shape, UNTOUCHED, np.float32)]
        if self.heads.inner // self.heads.groups % 32 == 0:
            arrays.append(np.full(shape, 7, np.int8))
            arrays.append(np.full((shape[0], shape[1] // 32), 7, np.uint64))
        return [self.device.upload(values) for values in arrays]

    def one_by_one(self) -> list[Array]:
        """Runs the kernels; returns states, results and norms."""
        device, heads, batch = self.device, self.heads, self.batch
        inputs, state, out = self.new()
        convolved = device.empty((batch.rows, heads.channels), np.float32)
        count = len(batch.taken)
        device.launch(
            "rf_short_conv",
            *(self.x, None, None, self.filter, self.bias, *self.arrays, inputs),
            *(convolved, None, None, None, 0),
            *(heads.channels + 4, heads.channels, heads.width, 1),
            grid=(-(-heads.channels // 256), 1, count),
            block=64,
        )
        device.launch(
            "rf_mamba",
            *(convolved, self.dt, *self.rates, *self.arrays, state, out),
            *(heads.channels, heads.heads + 1, *self.sizes),
            grid=(-(-heads.head_dim // 32), heads.heads, count),
            block=128,
        )
        normed, dim = self.normed(), heads.inner // heads.groups
        device.launch(
            "rf_gated_norm",
            *(out, self.z, self.norm, *_forms(normed), heads.inner + 4),
            *(heads.groups, dim, dim, 1, EPS),
            grid=(batch.rows, heads.groups),
            block=heads.norm_threads,
        )
        return [array.get() for array in (inputs, state, out, *normed)]

    def at_once(self, *, norms: bool) -> list[Array]:
        """Runs the one kernel, twice from the same states, as counters must be zero again."""
        heads, count = self.heads, len(self.batch.taken)
        arrived = self.device.upload(np.zeros(count * heads.groups, np.uint32), "arrived")
        for _ in range(2):
            inputs, state, out = self.new()
            normed = self.normed()
            self.device.launch(
                "rf_mamba_step",
                *(self.x, self.filter, self.bias, self.dt, *self.rates, *self.arrays),
                *(inputs, state, arrived, out, heads.channels + 4, heads.heads + 1),
                *(*self.sizes, heads.width, self.z, self.norm, *_forms(normed)),
                *(heads.inner + 4, heads.norm_threads if norms else 0, EPS),
                grid=(heads.heads, count),
                block=128 * -(-heads.head_dim // 32),
            )
            assert not arrived.get().any()
        return [array.get() for array in (inputs, state, out, *(normed if norms else ()))]


def _forms(normed: list[DeviceArray]) -> tuple[DeviceArray | int | None, ...]:
    """The arguments for them, without halves, in one slice."""
    f32, *int8 = normed
    return (f32, None, *(int8 or (None, None)), 0)


def compare(device: Device, batch: Batch, heads: Heads) -> None:
    """Both ways make the same bits, and leave rows of no token alone."""
    layer = Layer(device, batch, heads)
    want = layer.one_by_one()
    has_token = (want[2] != UNTOUCHED).any(axis=(1, 2))
    for norms in (False, True):
        inputs, state, out, *normed = layer.at_once(norms=norms)
        for mine, theirs in zip((inputs, state, out), want, strict=False):
            np.testing.assert_array_equal(mine.view(np.uint32), theirs.view(np.uint32))
        for mine, theirs, before in zip(normed, want[3:], layer.normed(), strict=False):
            np.testing.assert_array_equal(mine[has_token], theirs[has_token])
            np.testing.assert_array_equal(mine[~has_token], before.get()[~has_token])


@pytest.mark.parametrize("batch", DECODES.values(), ids=DECODES.keys())
def test_tokens_go_on_from_their_states(device: Device, batch: Batch) -> None:
    compare(device, batch, HEADS["small"])


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_heads_of_every_shape_have_the_same_bits(device: Device, heads: Heads) -> None:
    compare(device, DECODES["other_slots"], heads)
