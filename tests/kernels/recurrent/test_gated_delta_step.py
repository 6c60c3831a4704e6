"""rf_gated_delta_step: the bits of convolution, delta rule and norm, in one launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.recurrent import DECODES, UNTOUCHED, Batch, wide

EPS = 1e-6

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Heads:
    """Sizes of a layer."""

    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 64
    value_dim: int = 32
    width: int = 4
    tiled: bool = False

    @property
    def channels(self) -> int:
        """Of the convolution."""
        return 2 * self.key_heads * self.key_dim + self.results

    @property
    def results(self) -> int:
        """Of all heads."""
        return self.value_heads * self.value_dim


HEADS = {
    "one_part": Heads(),
    "tiled": Heads(tiled=True),
    "one_head_each": Heads(key_heads=3, value_heads=3),
    "many_share": Heads(key_heads=1, value_heads=8, value_dim=64),
    "two_taps": Heads(width=2),
    "ragged": Heads(key_dim=36, value_dim=68, width=3),
    "qwen": Heads(key_dim=128, value_dim=128),
}


class Layer:
    """The inputs of a layer, and what each way to launch it makes of them."""

    def __init__(self, device: Device, batch: Batch, heads: Heads) -> None:
        self.device, self.batch, self.heads = device, batch, heads
        random = np.random.default_rng(6)

        def vector(*shape: int) -> DeviceArray:
            return device.upload(random.standard_normal(shape).astype(np.float32))

        def rows(columns: int, behind: int) -> DeviceArray:
            return device.upload(wide(batch.random_rows(random, columns), columns + behind))

        self.x, self.z = rows(heads.channels, 4), rows(heads.results, 8)
        self.gates = rows(heads.value_heads, 1), rows(heads.value_heads, 3)
        self.filter = vector(heads.channels, heads.width)
        decay = -np.exp(random.uniform(-5, 0.5, heads.value_heads)).astype(np.float32)
        self.rates = device.upload(decay), vector(heads.value_heads)
        self.norm = vector(heads.value_dim)
        self.states = [
            batch.random_states(random, heads.width - 1, heads.channels),
            batch.random_states(random, heads.value_heads, heads.key_dim, heads.value_dim),
        ]
        self.arrays = batch.arrays(device)

    def arrays_of_a_run(self) -> tuple[list[DeviceArray], list[DeviceArray], tuple[Any, ...]]:
        """States as before, places of results, and these as kernels take them."""
        device, shape = self.device, (self.batch.rows, self.heads.results)
        states = [
            device.upload(values, name)
            for values, name in zip(self.states, ("inputs", "state"), strict=True)
        ]
        out = [
            device.upload(np.full(shape, UNTOUCHED, np.float32), "f32"),
            device.upload(np.full(shape, UNTOUCHED, np.float16), "f16"),
        ]
        if self.heads.value_dim % 32:
            return states, out, (*out, None, None, 0)
        out.append(device.upload(np.full((2, *shape), 77, np.int8), "q"))
        scales = (2, shape[0], shape[1] // 32)
        out.append(device.upload(np.full(scales, 77, np.uint64), "scales"))
        return states, out, (*out, shape[0] * shape[1])

    def one_by_one(self) -> list[Array]:
        """Runs the three kernels; returns results and states."""
        device, heads, batch = self.device, self.heads, self.batch
        (inputs, state), out, forms = self.arrays_of_a_run()
        convolved = device.empty((batch.rows, heads.channels), np.float32)
        count = len(batch.taken)
        device.launch(
            "rf_short_conv",
            *(self.x, None, None, self.filter, None, *self.arrays, inputs),
            *(convolved, None, None, None, 0),
            *(heads.channels + 4, heads.channels, heads.width, 1),
            grid=(-(-heads.channels // 256), 1, count),
            block=64,
        )
        results = device.upload(np.zeros((batch.rows, heads.results), np.float32))
        device.launch(
            "rf_gated_delta",
            *(convolved, *self.gates, *self.rates, *self.arrays, state, results),
            *(heads.channels, heads.value_heads + 1, heads.value_heads + 3),
            *(heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim),
            *(int(heads.tiled), EPS),
            grid=(-(-heads.value_dim // 32), heads.value_heads, count),
            block=128,
        )
        z = np.nan_to_num(self.z.get())  # of rows of no sequence
        device.launch(
            "rf_gated_norm",
            *(results, device.upload(z), self.norm, *forms),
            *(heads.results + 8, heads.value_heads, heads.value_dim, 0, 0, EPS),
            grid=(batch.rows, heads.value_heads),
            block=device.wave,
        )
        return [array.get() for array in (*out, inputs, state)]

    def at_once(self) -> list[Array]:
        """Runs the one kernel, twice from the same states, as counters must be zero again."""
        heads, count = self.heads, len(self.batch.taken)
        arrived = self.device.upload(np.zeros(count * heads.key_heads, np.uint32), "arrived")
        for _ in range(2):
            (inputs, state), out, forms = self.arrays_of_a_run()
            self.device.launch(
                "rf_gated_delta_step",
                *(self.x, self.filter, *self.gates, *self.rates, self.z, self.norm),
                *(*self.arrays, inputs, state, arrived, *forms),
                *(heads.channels + 4, heads.value_heads + 1, heads.value_heads + 3),
                *(heads.results + 8, heads.key_heads, heads.value_heads),
                *(heads.key_dim, heads.value_dim, heads.width, int(heads.tiled), EPS),
                grid=(heads.value_heads, count),
                block=128 * -(-heads.value_dim // 32),
            )
            assert not arrived.get().any()
        return [array.get() for array in (*out, inputs, state)]


def compare(device: Device, batch: Batch, heads: Heads) -> None:
    """Both ways make the same bits, and leave rows of no token alone."""
    layer = Layer(device, batch, heads)
    *want, want_inputs, want_state = layer.one_by_one()
    *got, inputs, state = layer.at_once()
    np.testing.assert_array_equal(inputs.view(np.uint32), want_inputs.view(np.uint32))
    np.testing.assert_array_equal(state.view(np.uint32), want_state.view(np.uint32))
    taken = np.zeros(batch.rows, bool)
    for _, rows in batch.of_taken():
        taken[rows] = True
    for mine, theirs in zip(got, want, strict=True):
        axis = mine.ndim - 2
        there, elsewhere = np.flatnonzero(taken), np.flatnonzero(~taken)
        np.testing.assert_array_equal(mine.take(there, axis), theirs.take(there, axis))
        assert (mine.take(elsewhere, axis) == 77).all()


@pytest.mark.parametrize("batch", DECODES.values(), ids=DECODES.keys())
def test_tokens_go_on_from_their_states(device: Device, batch: Batch) -> None:
    compare(device, batch, HEADS["one_part"])


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_heads_of_every_shape_have_the_same_bits(device: Device, heads: Heads) -> None:
    compare(device, DECODES["decodes"], heads)


def test_qwen_s_heads_in_their_other_order(device: Device) -> None:
    compare(device, DECODES["other_slots"], replace(HEADS["qwen"], tiled=True))
