"""rf_experts_add_down_* and rf_experts_choose_gate_up_*: one layer and the next.

Together they do what other kernels do in launches of their own, so those are the oracle, to the
last bit; their own tests compare them with float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from kernels.table import read_formats
from rocmforge.models.layer_config import ExpertsConfig, RouterFunction
from rocmforge_hip.ops.norms import norm_threads
from rocmforge_hip.weights.formats import FORMAT_NUMBERS
from tests.kernels.experts.test_route import FUNCTIONS, RULE
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.experts import random_choice, random_experts, upload_experts
from tests.support.operands.groups import ELSEWHERE
from tests.support.operands.linear import (
    CLAMPED_SWIGLU,
    SILU,
    SQUARED_RELU,
    random_activation,
    random_layer,
)

EPS = 1e-3  # so large that it counts
FORMATS = [format.name for format in read_formats() if format.is_quantised]
CHOSEN = 4
INNER = 64  # features between gate and down of the second layer


@dataclass(frozen=True, slots=True)
class Row:
    """The residual behind a layer, and its norm as the next one reads it."""

    residual: DeviceArray
    norm: DeviceArray  # its weight
    q: DeviceArray
    scale: DeviceArray
    squares: DeviceArray | None  # None: the scale has the factor of the norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row through down of the experts of a layer, and through gate and up of the next one."""

    name: str
    rule: ExpertsConfig = RULE
    features: int = 256
    inner: int = 256
    threads: int = 256
    has_biases: bool = False
    scattered: bool = False
    own: tuple[int, int] = (0, RULE.num_experts)
    shared: int = 0
    weighed: int = 1  # 1: the shared expert has a logit
    activation: int = SILU

    def down(self, device: Device, *, defers: bool) -> Row:
        rng, features = np.random.default_rng(9), self.features
        layer = random_experts(rng, 6, self.name, features, self.inner, has_biases=self.has_biases)
        packed, chosen = layer.packed(), random_choice(rng, 1, 6, CHOSEN)
        chosen[0, 1] = ELSEWHERE
        x = quantise(random_activation(rng, CHOSEN, self.inner), 1)
        factors = rng.uniform(0.1, 1, (1, CHOSEN)).astype(np.float32)
        old, weight = rng.uniform(0.5, 2, (2, 1, features)).astype(np.float32)
        row = Row(
            device.upload(old),
            device.upload(weight),
            device.empty((1, features), np.int8),
            device.empty((features // 32,), SCALE_DTYPE),
            device.empty((features // 32,), np.float32) if defers else None,
        )
        arguments = (
            *upload_experts(device, packed, scattered=self.scattered),
            *(device.upload(each) for each in (x.q, x.scales, chosen, factors)),
            device.upload(layer.biases[0]) if layer.biases else None,
        )
        sizes = CHOSEN, features, self.inner // 32
        sums = device.empty((1,), np.int64)
        if defers:
            device.launch(
                f"rf_experts_add_down_{self.name}",
                *(*arguments, packed[0].nbytes, *sizes),
                *(row.residual, row.norm, row.q, row.scale, row.squares, sums, 1),
                grid=features // 32,
                block=2 * self.threads,
            )
            return row
        out = device.empty((1, features), np.float32)
        device.launch(
            f"rf_experts_down_{self.name}_s1",
            *(*arguments, out, packed[0].nbytes, 1, *sizes),
            grid=(1, features // 16),
            block=self.threads,
        )
        device.launch(
            "rf_add_rms_norm",
            *(out, row.residual, None, None, row.norm, None, None, row.q, row.scale, 0),
            *(features, EPS),
            grid=1,
            block=norm_threads(features),
        )
        return row

    def logits(self, device: Device, row: Row) -> DeviceArray:
        """What the router makes of the row: logits, or what they are made of."""
        rng, count = np.random.default_rng(10), self.rule.num_experts + self.shared * self.weighed
        router = device.upload(rng.standard_normal((count, self.features)).astype(np.float32))
        logits, threads = device.empty((1, count), np.float32), norm_threads(self.features)
        if row.squares is not None:
            return self._sums(device, row, router, count)
        zeros, total = (
            np.zeros((1, self.features), np.float32),
            device.empty((1, self.features), "f4"),
        )
        device.launch(
            "rf_add_rms_norm_logits",
            *(device.upload(zeros), row.residual, None, row.norm, None, row.norm, router, total),
            *(logits, None, None, None, None, 0, None, None, None, None, 0),
            *(1, count, self.features, EPS),
            grid=(4 + -(-count // 4), 1),
            block=threads,
        )
        return logits

    def _sums(self, device: Device, row: Row, router: DeviceArray, count: int) -> DeviceArray:
        """What the logits are made of, where a product of zeros is added to the row."""
        features, blocks = self.features, self.features // 32
        layer = random_layer(np.random.default_rng(13), "q8_0", features, 32)
        zeros = quantise(np.zeros((1, 32), np.float32), 1)
        sums = device.upload(np.zeros(count, np.int64))
        device.launch(
            "rf_gemv_deferred_route",
            *(device.upload(each) for each in (layer.packed(), zeros.q, zeros.scales)),
            *(None, features, 1, FORMAT_NUMBERS["q8_0"], row.residual, row.norm),
            *(device.empty((1, features), np.int8), device.empty((blocks,), SCALE_DTYPE)),
            *(device.empty((blocks,), np.float32), router, sums, count),
            grid=blocks,
            block=128,
        )
        return sums

    def gate_up(
        self,
        device: Device,
        q: DeviceArray,
        scale: DeviceArray,
        logits: DeviceArray,
        squares: DeviceArray | None,
        *,
        chooses: bool,
    ) -> list[DeviceArray]:
        """What they make of rows: experts, weights, and products in both forms."""
        rng, rows, rule = np.random.default_rng(11), q.shape[0], self.rule
        layer = random_experts(
            *(rng, self.own[1], self.name, INNER, self.features, self.activation),
            has_biases=self.has_biases,
        )
        packed, pairs = layer.packed(), rule.num_chosen + self.shared
        chosen, weights = device.empty((rows, pairs), np.int32), device.empty((rows, pairs), "f4")
        bias, selection, scales = (
            device.upload(rng.uniform(0.5, 1, rule.num_experts).astype(np.float32))
            if self.has_biases
            else None
            for _ in range(3)
        )
        of_rule = (
            *(rule.num_chosen, FUNCTIONS[rule.router], rule.num_groups, rule.num_chosen_groups),
            *(int(rule.normalised), rule.scale, *self.own, self.shared, self.shared * self.weighed),
        )
        outs = (
            device.empty((rows * pairs, INNER), np.float32),
            device.empty((rows * pairs, INNER), np.int8),
            device.empty((rows * pairs, INNER // 32), SCALE_DTYPE),
        )
        for array in outs:  # those of experts of another device stay
            array.set(np.zeros(array.shape, array.dtype))
        biases = tuple(device.upload(each) for each in layer.biases) or (None, None)
        matrices = upload_experts(device, packed, scattered=self.scattered)
        forms = outs[0], None, outs[1], outs[2], 0
        sizes = INNER, self.features // 32, self.activation
        blocks = -(-INNER // (64 if self.activation == SQUARED_RELU else 32))
        choice = bias, selection, scales, chosen, weights, None, rule.num_experts, *of_rule
        if chooses:
            device.launch(
                f"rf_experts_choose_gate_up_{self.name}",
                *(*matrices, q, scale, *biases, *forms, packed[0].nbytes, *sizes),
                *(squares, EPS, logits, *choice),
                grid=(pairs, blocks + 1),
                block=256,
            )
        else:
            device.launch(
                "rf_route_choose",
                *(logits, *choice, 1),
                grid=rows,
                block=-(-rule.num_experts // 64) * 64,
            )
            device.launch(
                f"rf_experts_gate_up_{self.name}_s1",
                *(*matrices, q, scale, chosen, *biases, *forms, packed[0].nbytes),
                *(rows, pairs, *sizes),
                grid=(rows * pairs, blocks),
                block=256,
            )
        return [chosen, weights, *outs]


def _check(device: Device, case: Case) -> None:
    found = []
    for defers in (False, True):
        row = case.down(device, defers=defers)
        logits = case.logits(device, row)
        made = case.gate_up(device, row.q, row.scale, logits, row.squares, chooses=defers)
        found.append([array.get().tobytes() for array in (row.residual, row.q, *made)])
    assert found[1] == found[0]


@pytest.mark.parametrize("name", FORMATS)
def test_sums_choices_and_norms_are_made_where_they_are_read(device: Device, name: str) -> None:
    _check(device, Case(name=name))


def test_biases_are_added_first(device: Device) -> None:
    """Of experts, and those that change the choice among them."""
    rule = replace(RULE, router=RouterFunction.SIGMOID, num_groups=4, num_chosen_groups=2)
    case = Case(name="mxfp4", rule=rule, has_biases=True, activation=CLAMPED_SWIGLU, inner=96)
    _check(device, case)


@pytest.mark.parametrize("router", [RouterFunction.SOFTMAX, RouterFunction.SIGMOID])
def test_blocks_choose_by_what_the_function_makes_of_logits(
    device: Device, router: RouterFunction
) -> None:
    """Where a bias is added to that, or groups are ranked by sums of it."""
    rule = replace(RULE, router=router)
    _check(device, Case(name="q8_0", rule=rule, has_biases=True))
    _check(device, Case(name="q8_0", rule=replace(rule, num_groups=4, num_chosen_groups=2)))


def test_one_expert_is_chosen(device: Device) -> None:
    _check(device, Case(name="q8_0", rule=replace(RULE, num_chosen=1)))


def test_waves_that_share_an_expert_and_long_rows(device: Device) -> None:
    """As many sums of squares as one wave has no lanes for."""
    _check(device, Case(name="q5_0", features=2144, inner=1056, threads=128, scattered=True))


def test_experts_of_other_devices_and_of_all_tokens(device: Device) -> None:
    _check(device, Case(name="q8_0", own=(7, 9)))
    _check(device, Case(name="q8_0", own=(-1, 21), shared=1, activation=SQUARED_RELU))
    _check(device, Case(name="q8_0", own=(-1, 21), shared=1, weighed=0))


def test_sums_of_logits_begin_again_behind_down(device: Device) -> None:
    case = Case(name="q4_k")
    layer = random_experts(np.random.default_rng(1), 6, case.name, 256, 256)
    packed = layer.packed()
    x = quantise(random_activation(np.random.default_rng(2), 1, 256), 1)
    sums = device.upload(np.arange(1, 71, dtype=np.int64))
    zeros = device.upload(np.zeros((1, 256), np.float32))
    device.launch(
        f"rf_experts_add_down_{case.name}",
        *(*upload_experts(device, packed), device.upload(x.q), device.upload(x.scales)),
        *(device.upload(np.zeros((1, 1), np.int32)), device.upload(np.ones((1, 1), np.float32))),
        *(None, packed[0].nbytes, 1, 256, 8, zeros, zeros),
        *(device.empty((1, 256), np.int8), device.empty((8,), SCALE_DTYPE)),
        *(device.empty((8,), np.float32), sums, 65),
        grid=8,
        block=2 * case.threads,
    )
    assert sums.get().tolist() == [0] * 65 + list(range(66, 71))


def test_sums_of_logits_begin_again_in_a_launch(device: Device) -> None:
    sums = device.upload(np.arange(1, 701, dtype=np.int64))
    device.launch("rf_clear_logits", sums, 513, grid=1, block=256)
    assert sums.get().tolist() == [0] * 513 + list(range(514, 701))
