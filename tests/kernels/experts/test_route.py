"""rf_route_{logits,gemm,choose}: the experts of each token and their weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.models.layer_config import ExpertsConfig, RouterFunction
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_reference import ops
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.groups import ELSEWHERE

Float32 = npt.NDArray[np.float32]
FUNCTIONS = {
    RouterFunction.SOFTMAX: 0,
    RouterFunction.SIGMOID: 1,
    RouterFunction.SOFTMAX_OF_CHOSEN: 2,
}
RULE = ExpertsConfig(
    num_experts=20,
    num_chosen=3,
    intermediate_size=5,
    router=RouterFunction.SOFTMAX,
    normalised=True,
)


def logits_of(device: Device, x: Float32, router: Float32) -> Float32:
    tokens, experts = len(x), len(router)
    out = device.empty((tokens, experts), np.float32, "logits")
    device.launch(
        "rf_route_logits",
        *(device.upload(x, "x"), device.upload(router, "router"), out),
        *(tokens, experts, x.shape[1]),
        grid=(-(-experts // 4), -(-tokens // 4)),
        block=256,
    )
    return out.get()


def choose(
    device: Device,
    logits: Float32,
    rule: ExpertsConfig,
    bias: Float32 | None = None,
    selection_bias: Float32 | None = None,
    own: tuple[int, int] | None = None,
    shared: int = 0,
    weighed: int = 1,
    weight_scale: Float32 | None = None,
    shares: DeviceArray | None = None,
) -> tuple[npt.NDArray[np.int32], Float32]:
    parts = logits if logits.ndim == 3 else logits[None]
    weighs = int(shared * weighed > 0 or shares is not None)
    splits, tokens, experts = *parts.shape[:2], parts.shape[2] - weighs
    chosen = device.empty((tokens, rule.num_chosen + shared), np.int32, "chosen")
    weights = device.empty((tokens, rule.num_chosen + shared), np.float32, "weights")
    device.launch(
        "rf_route_choose",
        device.upload(parts, "logits"),
        None if bias is None else device.upload(bias, "bias"),
        None if selection_bias is None else device.upload(selection_bias, "selection bias"),
        None if weight_scale is None else device.upload(weight_scale, "scales"),
        *(chosen, weights, shares, experts, rule.num_chosen, FUNCTIONS[rule.router]),
        *(rule.num_groups, rule.num_chosen_groups, int(rule.normalised), rule.scale),
        *(own or (0, experts)),
        *(shared, weighs, splits),
        grid=tokens,
        block=-(-experts // 64) * 64,
    )
    return chosen.get(), weights.get()


@pytest.mark.parametrize(
    ("tokens", "experts", "features"),
    [(1, 5, 64), (6, 9, 1032), (5, 4, 2880)],
    ids=["part_of_a_block", "ragged_tiles", "several_rounds"],
)
def test_logits_are_those_of_float32(
    device: Device, tokens: int, experts: int, features: int
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((tokens, features)).astype(np.float32)
    router = rng.standard_normal((experts, features)).astype(np.float32)
    logits = logits_of(device, x, router)
    magnitude = np.abs(x).astype(np.float64) @ np.abs(router).T.astype(np.float64)
    error = np.abs(logits - x.astype(np.float64) @ router.T.astype(np.float64)) / magnitude
    assert error.max() < 1e-6
    # Nor do they depend on how many tokens are routed together.
    np.testing.assert_array_equal(logits_of(device, x[:1], router), logits[:1])


@pytest.mark.parametrize(
    ("tokens", "experts", "features", "splits"),
    [
        *((3, 5, 32, 1), (70, 67, 64, 1), (64, 64, 288, 1), (3, 5, 64, 2), (70, 67, 224, 4)),
        *((70, 65, 96, 1), (5, 129, 224, 2), (2, 1, 64, 1)),
    ],
    ids=[
        *("part_of_a_block", "ragged_tiles", "several_rounds", "halves", "uneven_quarters"),
        *("a_row_left_over", "one_behind_two_tiles", "one_alone"),
    ],
)
def test_logits_of_many_tokens_are_those_of_float32(
    device: Device, tokens: int, experts: int, features: int, splits: int
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((tokens, features)).astype(np.float32)
    router = rng.standard_normal((experts, features)).astype(np.float32)
    # Too small for halves.
    x[0], router[0] = x[0] * np.float32(1e-3), router[0] * np.float32(1e-2)
    out = device.empty((splits, tokens, experts), np.float32, "logits")
    device.launch(
        "rf_route_gemm",
        *(device.upload(x, "x"), device.upload(router, "router"), out),
        *(tokens, experts, features),
        grid=(Geometry.route_tiles(experts), -(-tokens // 64), splits),
        block=256,
    )
    magnitude = np.abs(x).astype(np.float64) @ np.abs(router).T.astype(np.float64)
    small = 2.0**-25 * (np.abs(x).sum(1)[:, None] + np.abs(router).sum(1))
    error = np.abs(out.get().sum(0) - x.astype(np.float64) @ router.T.astype(np.float64))
    assert (error < 1e-6 * magnitude + small).all()


def test_weights_may_be_scaled_by_expert(device: Device) -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((5, 20)).astype(np.float32)
    scales = rng.uniform(0.5, 2, 20).astype(np.float32)
    rule = ExpertsConfig(
        num_experts=20,
        num_chosen=4,
        intermediate_size=32,
        router=RouterFunction.SOFTMAX,
        normalised=True,
    )
    chosen, weights = choose(device, logits, rule)
    again, scaled = choose(device, logits, rule, weight_scale=scales)
    np.testing.assert_array_equal(again, chosen)
    np.testing.assert_allclose(scaled, weights * scales[chosen], rtol=1e-6)


@pytest.mark.parametrize("router", RouterFunction)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (4, 2), (20, 5)])
def test_tokens_are_routed_as_the_reference_does(
    device: Device,
    router: RouterFunction,
    has_bias: bool,
    normalised: bool,
    groups: int,
    kept: int,
) -> None:
    rng = np.random.default_rng(1)
    logits = 2 * rng.standard_normal((5, 20)).astype(np.float32)
    bias, selection_bias = rng.standard_normal((2, 20)).astype(np.float32)
    rule = replace(
        RULE,
        router=router,
        normalised=normalised,
        num_groups=groups,
        num_chosen_groups=kept,
        scale=1.7,
    )
    biases = (bias, selection_bias) if has_bias else (None, None)
    chosen, weights = choose(device, logits, rule, *biases)
    exact = logits.astype(np.float64) + (bias if has_bias else 0)
    expected = ops.route(exact, biases[1], rule)
    np.testing.assert_array_equal(chosen, expected[0])
    np.testing.assert_allclose(weights, expected[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("experts", "num_chosen"),
    [(7, 6), (33, 6), (100, 6), (128, 8), (132, 5), (160, 80), (512, 10)],
)
def test_any_number_of_experts_is_chosen_from(
    device: Device, experts: int, num_chosen: int
) -> None:
    rule = replace(RULE, num_experts=experts, num_chosen=num_chosen)
    logits = np.random.default_rng(2).standard_normal((2, experts)).astype(np.float32)
    chosen, weights = choose(device, logits, rule)
    expected = ops.route(logits.astype(np.float64), None, rule)
    np.testing.assert_array_equal(chosen, expected[0])
    np.testing.assert_allclose(weights, expected[1], rtol=1e-5)


def test_groups_of_many_experts_are_chosen_first(device: Device) -> None:
    """Whose experts are of several waves."""
    rule = replace(RULE, num_experts=160, num_chosen=7, num_groups=5, num_chosen_groups=2)
    logits = np.random.default_rng(6).standard_normal((3, 160)).astype(np.float32)
    chosen, weights = choose(device, logits, rule)
    expected = ops.route(logits.astype(np.float64), None, rule)
    np.testing.assert_array_equal(chosen, expected[0])
    np.testing.assert_allclose(weights, expected[1], rtol=1e-5)


def test_parts_of_logits_are_added_up(device: Device) -> None:
    parts = np.random.default_rng(5).standard_normal((3, 4, 21)).astype(np.float32)
    whole = parts[0] + parts[1] + parts[2]
    of_parts, of_whole = (choose(device, each, RULE, shared=1) for each in (parts, whole))
    for each, expected in zip(of_parts, of_whole, strict=True):
        np.testing.assert_array_equal(each, expected)


@pytest.mark.parametrize(("first", "count"), [(0, 10), (10, 10), (19, 1)])
def test_experts_of_another_device_are_marked(device: Device, first: int, count: int) -> None:
    logits = np.random.default_rng(3).standard_normal((9, 20)).astype(np.float32)
    whole, of_whole = choose(device, logits, RULE)
    chosen, weights = choose(device, logits, RULE, own=(first, count))
    here = (whole >= first) & (whole < first + count)
    assert here.any()
    np.testing.assert_array_equal(chosen, np.where(here, whole - first, ELSEWHERE))
    np.testing.assert_array_equal(weights, of_whole)


def test_each_token_goes_to_the_shared_expert(device: Device) -> None:
    logits = np.random.default_rng(4).standard_normal((5, 21)).astype(np.float32)
    chosen, weights = choose(device, logits, RULE, own=(-1, 21), shared=1)
    expected = choose(device, np.ascontiguousarray(logits[:, :20]), RULE)
    np.testing.assert_array_equal(chosen[:, :-1], expected[0] + 1)
    np.testing.assert_array_equal(weights[:, :-1], expected[1])
    assert (chosen[:, -1] == 0).all()
    np.testing.assert_allclose(weights[:, -1], 1 / (1 + np.exp(-logits[:, -1])), rtol=1e-6)


def test_a_shared_expert_without_a_logit_weighs_one(device: Device) -> None:
    logits = np.random.default_rng(4).standard_normal((5, 20)).astype(np.float32)
    rule = replace(RULE, scale=2.5)  # of the others alone
    chosen, weights = choose(device, logits, rule, own=(-1, 21), shared=1, weighed=0)
    expected = choose(device, logits, rule)
    np.testing.assert_array_equal(chosen, np.pad(expected[0] + 1, ((0, 0), (0, 1))))
    np.testing.assert_array_equal(weights[:, :-1], expected[1])
    assert (weights[:, -1] == 1).all()


def test_a_network_beside_the_experts_has_a_share_of_its_own(device: Device) -> None:
    logits = np.random.default_rng(4).standard_normal((5, 21)).astype(np.float32)
    shares = device.empty((5,), np.float32, "shares")
    found = choose(device, logits, RULE, shares=shares)
    expected = choose(device, np.ascontiguousarray(logits[:, :20]), RULE)
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each, wanted)
    np.testing.assert_allclose(shares.get(), 1 / (1 + np.exp(-logits[:, -1])), rtol=1e-6)


@pytest.mark.parametrize("experts", [20, 132])
def test_of_equal_scores_the_first_expert_is_chosen(device: Device, experts: int) -> None:
    logits = np.zeros((3, experts), np.float32)
    logits[1, ::2] = -0.0
    logits[2, [1, experts - 1]] = 1
    rule = replace(RULE, num_experts=experts, router=RouterFunction.SOFTMAX_OF_CHOSEN)
    chosen, weights = choose(device, logits, rule)
    assert chosen.tolist() == [[0, 1, 2], [0, 1, 2], [1, experts - 1, 0]]
    np.testing.assert_allclose(weights[:2], 1 / 3, rtol=1e-6)


def test_weights_of_no_size_are_not_blown_up(device: Device) -> None:
    rule = replace(RULE, router=RouterFunction.SIGMOID)
    _, weights = choose(device, np.full((1, 20), -1000, np.float32), rule)
    assert weights.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("experts", [20, 100])
def test_logits_that_are_no_numbers_choose_experts_that_exist(device: Device, experts: int) -> None:
    rule = replace(RULE, num_experts=experts)
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        chosen, _ = choose(device, np.full((1, experts), value, np.float32), rule)
        assert len(set(chosen[0].tolist())) == 3
        assert set(chosen[0].tolist()) <= set(range(experts))
