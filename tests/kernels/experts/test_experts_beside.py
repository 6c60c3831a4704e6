"""rf_experts_*_beside: experts of a token, and a network beside them, in the same launches.

They do what other kernels do in launches of their own, so those are the oracle, to the last bit;
their own tests compare them with float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.models.layer_config import ExpertsConfig, RouterFunction
from rocmforge_hip.ops.norms import norm_threads
from rocmforge_hip.weights.formats import FORMAT_NUMBERS
from tests.kernels.experts.test_route import FUNCTIONS, RULE
from tests.kernels.matrices.test_gemv_mixed import QUANTISED, end_for, end_for_all
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.experts import (
    ExpertLayer,
    random_choice,
    random_experts,
    upload_experts,
)
from tests.support.operands.groups import ELSEWHERE
from tests.support.operands.linear import (
    GELU_TANH,
    NOT_GATED,
    SILU,
    Layer,
    random_activation,
    random_layer,
)
from tests.support.operands.weights import block_features

EPS = 1e-3  # so large that it counts
EXPERTS, CHOSEN = 6, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row through experts, and another through the network beside them."""

    name: str  # of the experts' type
    beside: str = "q8_0"
    features: int = 256  # that both read
    inner: int = 64  # of an expert
    beside_inner: int = 96
    threads: int = 64  # of a tile of the network
    activation: int = SILU
    has_elsewhere: bool = False
    scattered: bool = False
    has_norms: bool = False  # of both results, and of their sum, which is scaled
    has_share: bool = False  # by which the network's result is multiplied

    def check_gate_up(self, device: Device) -> None:
        rng = np.random.default_rng(5)
        layer = random_experts(rng, EXPERTS, self.name, self.inner, self.features, self.activation)
        network = random_layer(rng, self.beside, self.beside_inner, self.features, self.activation)
        x, y = (_uploaded(device, rng, 1, self.features) for _ in range(2))
        weight, places = upload_experts(device, layer.packed(), scattered=self.scattered)
        nbytes, other = layer.packed()[0].nbytes, device.upload(network.packed())
        chosen = device.upload(self._chosen(rng))
        quant_blocks = self.features // 32

        def alone() -> list[DeviceArray]:
            outs = _forms(device, CHOSEN, self.inner)
            device.launch(
                f"rf_experts_gate_up_{self.name}_s1",
                *(weight, places, *x, chosen, None, None, outs[0], None, *outs[1:], 0, nbytes),
                *(1, CHOSEN, self.inner, quant_blocks, self.activation),
                grid=(CHOSEN, self.inner // 32),
                block=256,
            )
            made = _forms(device, 1, self.beside_inner)
            device.launch(
                f"rf_gemv_gated_r1{end_for(self.beside)}",
                *(other, *y, made[0], None, *made[1:], 0, 1, 1, self.beside_inner, quant_blocks),
                *(self.activation, FORMAT_NUMBERS[self.beside]),
                grid=self.beside_inner // 32,
                block=self.threads,
            )
            return [*outs, *made]

        def together() -> list[DeviceArray]:
            outs, made = (
                _forms(device, CHOSEN, self.inner),
                _forms(device, 1, self.beside_inner),
            )
            device.launch(
                f"rf_experts_gate_up_beside{end_for_all(self.name, self.beside)}",
                *(weight, places, *x, chosen, outs[0], None, *outs[1:], 0, nbytes, CHOSEN),
                *(self.inner, quant_blocks, self.activation, FORMAT_NUMBERS[self.name]),
                *(other, *y, made[0], None, *made[1:], 0, self.beside_inner),
                *(FORMAT_NUMBERS[self.beside], self.threads),
                grid=(self.beside_inner + CHOSEN * self.inner) // 32,
                block=256,
            )
            return [*outs, *made]

        _check(alone, together)

    def check_choosing_gate_up(self, device: Device, rule: ExpertsConfig) -> None:
        """Of a row whose norm is yet to be completed, and experts that are yet to be chosen."""
        rng, count = np.random.default_rng(7), rule.num_experts
        layer = random_experts(rng, count, self.name, self.inner, self.features, self.activation)
        network = random_layer(rng, self.beside, self.beside_inner, self.features, self.activation)
        x, quant_blocks = _uploaded(device, rng, 1, self.features), self.features // 32
        weight, places = upload_experts(device, layer.packed(), scattered=self.scattered)
        nbytes, other = layer.packed()[0].nbytes, device.upload(network.packed())
        squares = device.upload(rng.uniform(1, 9, quant_blocks).astype(np.float32))
        # The last one is of the network's own share.
        sums = device.upload(rng.integers(-(2**40), 2**40, count + 1))
        selection = device.upload(rng.uniform(0.5, 1, count).astype(np.float32))
        own = (3, count - 5) if self.has_elsewhere else (0, count)
        of_rule = (
            *(count, rule.num_chosen, FUNCTIONS[rule.router], rule.num_groups),
            *(rule.num_chosen_groups, int(rule.normalised), rule.scale, *own, 0, 1),
        )

        def results() -> list[DeviceArray]:
            return [
                device.empty((1, rule.num_chosen), np.int32),
                device.empty((1, rule.num_chosen), np.float32),
                device.empty((1,), np.float32),
                *_forms(device, rule.num_chosen, self.inner),
                *_forms(device, 1, self.beside_inner),
            ]

        def alone() -> list[DeviceArray]:
            chosen, weights, shares, *outs = results()
            device.launch(
                f"rf_experts_choose_gate_up_{self.name}",
                *(weight, places, *x, None, None, outs[0], None, *outs[1:3], 0, nbytes),
                *(self.inner, quant_blocks, self.activation, squares, EPS, sums),
                *(None, selection, None, chosen, weights, shares, *of_rule),
                grid=(rule.num_chosen, self.inner // 32 + 1),
                block=256,
            )
            device.launch(
                f"rf_gemv_deferred_gated{end_for(self.beside)}",
                *(other, *x, outs[3], None, *outs[4:], 0, self.beside_inner, quant_blocks),
                *(self.activation, FORMAT_NUMBERS[self.beside], squares, EPS),
                grid=self.beside_inner // 32,
                block=self.threads,
            )
            return [chosen, weights, shares, *outs]

        def together() -> list[DeviceArray]:
            chosen, weights, shares, *outs = results()
            device.launch(
                f"rf_experts_choose_gate_up_beside{end_for_all(self.name, self.beside)}",
                *(weight, places, *x, outs[0], None, *outs[1:3], 0, nbytes),
                *(self.inner, quant_blocks, self.activation, FORMAT_NUMBERS[self.name]),
                *(other, outs[3], None, *outs[4:], 0, self.beside_inner),
                *(FORMAT_NUMBERS[self.beside], self.threads, squares, EPS, sums),
                *(None, selection, None, chosen, weights, shares, *of_rule),
                grid=(self.beside_inner + rule.num_chosen * self.inner) // 32 + 1,
                block=256,
            )
            return [chosen, weights, shares, *outs]

        _check(alone, together)

    def check_down(self, device: Device, *, threads: int = 256, adds: bool = True) -> None:
        rng = np.random.default_rng(6)
        layer, network = self._down(rng)
        x = _uploaded(device, rng, CHOSEN, self.inner)
        y = _uploaded(device, rng, 1, self.beside_inner)
        weight, places = upload_experts(device, layer.packed(), scattered=self.scattered)
        nbytes, other = layer.packed()[0].nbytes, device.upload(network.packed())
        chosen, factors = (
            device.upload(self._chosen(rng)),
            device.upload(rng.uniform(0.1, 1, (1, CHOSEN)).astype(np.float32)),
        )
        features = self.features
        blocks, beside_blocks = self.inner // 32, self.beside_inner // 32

        def sums() -> list[DeviceArray]:
            """Places of the sums of experts and of the network, the residual and its norm."""
            return [
                *(device.empty((1, features), np.float32) for _ in range(2)),
                device.upload(residual),
                *_forms(device, 1, features),
            ]

        residual, *of_norms = rng.uniform(0.5, 2, (5, 1, features)).astype(np.float32)
        *between, norm = (device.upload(weight) for weight in of_norms)
        mixed, shared, post = between if self.has_norms else (None, None, None)
        scale, share = (
            device.upload(np.array([value], np.float32)) if has_it else None
            for value, has_it in ((0.75, self.has_norms), (0.6, self.has_share))
        )
        arrived = device.upload(np.zeros(1, np.uint32))
        logit_sums = device.upload(np.arange(1, 71, dtype=np.int64))

        def alone() -> list[DeviceArray]:
            out, made, total, *outs = sums()
            device.launch(
                f"rf_experts_down_{self.name}_s1",
                *(weight, places, *x, chosen, factors, None, out, nbytes),
                *(1, CHOSEN, features, blocks),
                grid=(1, features // 16),
                block=threads,
            )
            device.launch(
                f"rf_gemv_{self.beside}_r1",
                *(other, *y, None, made, 1, 1, features, beside_blocks, NOT_GATED),
                grid=network.stored_rows // 16,
                block=self.threads,
            )
            if adds:
                device.launch(
                    "rf_add_shared_rms_norm",
                    *(out, mixed, made, shared, share, total, post, scale, norm),
                    *(outs[0], None, *outs[1:], 0, features, EPS),
                    grid=1,
                    block=norm_threads(features),
                )
            return [out, made, total, *outs]

        def together() -> list[DeviceArray]:
            out, made, total, *outs = sums()
            normed = outs[0], None, *outs[1:], 0, EPS
            device.launch(
                f"rf_experts_down_beside{end_for_all(self.name, self.beside)}",
                *(weight, places, *x, chosen, factors, out, nbytes, CHOSEN, features, blocks),
                *(FORMAT_NUMBERS[self.name], other, *y, made, beside_blocks),
                *(FORMAT_NUMBERS[self.beside], self.threads, logit_sums, 65),
                *(arrived if adds else None, mixed, shared, share, total, post, scale, norm),
                *normed,
                grid=2 * network.stored_rows // 16,
                block=threads,
            )
            return [out, made, total, *outs, arrived]

        found = _check(alone, together)
        assert found[-1] == bytes(4)  # as it was
        assert logit_sums.get().tolist() == [0] * 65 + list(range(66, 71))  # they begin again

    def _down(self, rng: np.random.Generator) -> tuple[ExpertLayer, Layer]:
        return (
            random_experts(rng, EXPERTS, self.name, self.features, self.inner),
            random_layer(rng, self.beside, self.features, self.beside_inner),
        )

    def _chosen(self, rng: np.random.Generator) -> npt.NDArray[np.int32]:
        chosen = random_choice(rng, 1, EXPERTS, CHOSEN)
        if self.has_elsewhere:
            chosen[0, 1] = ELSEWHERE
        return chosen


def _uploaded(
    device: Device, rng: np.random.Generator, rows: int, features: int
) -> tuple[DeviceArray, DeviceArray]:
    """Rows in int8, and their scales."""
    x = quantise(random_activation(rng, rows, features), 1)
    return device.upload(x.q), device.upload(x.scales)


def _forms(device: Device, rows: int, features: int) -> list[DeviceArray]:
    """Where products go: float32, int8 and scales. Those of experts elsewhere stay."""
    outs = [
        device.empty((rows, features), np.float32),
        device.empty((rows, features), np.int8),
        device.empty((rows, features // 32), SCALE_DTYPE),
    ]
    for array in outs:
        array.set(np.zeros(array.shape, array.dtype))
    return outs


def _check(*ways: Callable[[], list[DeviceArray]]) -> list[bytes]:
    """What the second way makes: first of all what the first one does."""
    first, second = ([array.get().tobytes() for array in way()] for way in ways)
    assert second[: len(first)] == first
    return second


@pytest.mark.parametrize("name", QUANTISED)
def test_each_type_of_experts(device: Device, name: str) -> None:
    case = Case(name=name, inner=256, beside_inner=256)
    case.check_gate_up(device)
    case.check_down(device)


@pytest.mark.parametrize("name", QUANTISED)
def test_each_type_of_networks(device: Device, name: str) -> None:
    """Which may be another than that of experts."""
    case = Case(name="q4_k", beside=name, inner=256, beside_inner=512)
    case.check_gate_up(device)
    case.check_down(device)


@pytest.mark.parametrize("threads", [64, 128, 256])
def test_tiles_of_a_network_have_their_own_threads(device: Device, threads: int) -> None:
    """So that its sums are of the same parts as in a launch of its own."""
    case = Case(name="q5_0", features=1056, inner=96, beside_inner=1056, threads=threads)
    case.check_gate_up(device)
    case.check_down(device)


def test_experts_of_other_devices_are_left_out(device: Device) -> None:
    case = Case(name="q5_0", has_elsewhere=True, scattered=True, activation=GELU_TANH)
    case.check_gate_up(device)
    case.check_down(device)


def test_waves_that_share_an_expert(device: Device) -> None:
    Case(name="q8_0", inner=608, threads=128, beside_inner=640).check_down(device, threads=128)


@pytest.mark.parametrize("features", [256, 1056, 4096])
def test_the_last_block_adds_and_norms_the_sum(device: Device, features: int) -> None:
    for has_norms in (False, True):
        case = Case(name="q5_0", features=features, has_norms=has_norms, has_share=has_norms)
        case.check_down(device)


def test_sums_are_left_as_they_are_where_nothing_is_to_be_added(device: Device) -> None:
    Case(name="q5_0").check_down(device, adds=False)


@pytest.mark.parametrize("name", ["q4_k", "q6_k", "q5_0", "q8_0", "mxfp4", "iq2_s", "q4_0"])
def test_both_complete_a_norm_and_choose_experts(device: Device, name: str) -> None:
    """Two formats, and more threads than a tile of the network has."""
    Case(name=name, inner=256, beside_inner=256).check_choosing_gate_up(device, RULE)
    case = Case(name="q8_0", beside=name, features=1056, beside_inner=96, threads=128)
    if block_features(name) == 32:  # others have super-blocks
        case.check_choosing_gate_up(device, RULE)


def test_both_choose_by_groups_and_leave_out_experts_of_other_devices(device: Device) -> None:
    rule = replace(RULE, router=RouterFunction.SIGMOID, num_groups=4, num_chosen_groups=2)
    case = Case(name="q5_0", has_elsewhere=True, scattered=True, activation=GELU_TANH)
    case.check_choosing_gate_up(device, rule)
    case.check_choosing_gate_up(device, replace(RULE, num_chosen=1))
