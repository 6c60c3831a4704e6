"""rf_add_rms_norm_{logits,route}: a norm together with the router that reads it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.models.layer_config import ExpertsConfig, RouterFunction
from rocmforge_reference import ops
from tests.kernels.experts.test_route import FUNCTIONS, RULE
from tests.support.launches.kernels import Device
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.groups import ELSEWHERE

Float32 = npt.NDArray[np.float32]
_EPS = 1e-5


def _check(
    device: Device,
    rule: ExpertsConfig,
    tokens: int,
    features: int,
    block: int,
    kind: str = "route",
    *,
    has_biases: bool = False,
    own: tuple[int, int] | None = None,
    shared: int = 0,
    weighed: int = 1,
    has_share: bool = False,
    between_norms: bool = False,
) -> None:
    """Checks the choice, and what is normed; between norms, delta is normed and there are three.

    A network beside the experts may have a share of its own.
    """
    own = own or (-shared, rule.num_experts + shared)
    rng = np.random.default_rng(tokens)
    delta, residual = rng.standard_normal((2, tokens, features)).astype(np.float32)
    weight = rng.uniform(0.5, 2, features).astype(np.float32)
    experts = rule.num_experts
    weighs = int(shared * weighed > 0 or has_share)
    logit_count, pairs = experts + weighs, rule.num_chosen + shared
    router = rng.standard_normal((logit_count, features)).astype(np.float32) / np.float32(8)
    biases = rng.standard_normal((2, experts)).astype(np.float32) if has_biases else (None, None)
    total = device.empty(delta.shape, np.float32, "total")
    logits = device.empty((tokens, logit_count), np.float32, "logits")
    arrived = device.upload(np.zeros(tokens, np.uint32), "arrived")
    chosen = device.empty((tokens, pairs), np.int32, "chosen")
    weights = device.empty((tokens, pairs), np.float32, "weights")
    shares = device.empty((tokens,), np.float32, "shares") if has_share else None
    out = device.empty(delta.shape, np.float32, "out")
    q = device.empty(delta.shape, np.int8, "q")
    scale = device.empty((tokens, features // 32), SCALE_DTYPE, "scale")
    of_router, of_choice = (
        None if bias is None else device.upload(bias, "bias") for bias in biases
    )
    post, other, routed = rng.uniform(0.5, 2, (3, features)).astype(np.float32)
    of_delta, of_other, of_logits = (
        device.upload(vector, "norm") if between_norms else None for vector in (post, other, routed)
    )
    other_out, other_f16 = device.empty(delta.shape, np.float32), device.empty(delta.shape, "f2")
    first = device.upload(weight, "weight")
    arguments = (
        *(device.upload(delta, "delta"), device.upload(residual, "residual")),
        *(of_delta, first, of_other, of_logits or first, device.upload(router, "router")),
        *(total, logits, out, None, q, scale, 0),
        *((other_out, other_f16) if between_norms else (None, None)),
        *(None, None, 0, tokens),
    )
    if kind == "logits":
        grid = 4 + -(-experts // 4), -(-tokens // 4)
        shape = experts, features, _EPS
        device.launch("rf_add_rms_norm_logits", *arguments, *shape, grid=grid, block=block)
    else:
        device.launch(
            "rf_add_rms_norm_route",
            *(*arguments, features, _EPS, arrived, of_router, of_choice, None, chosen, weights),
            *(shares, experts, rule.num_chosen, FUNCTIONS[rule.router]),
            *(rule.num_groups, rule.num_chosen_groups, int(rule.normalised), rule.scale),
            *(*own, shared, weighs),
            grid=(1 + logit_count, tokens),
            block=block,
        )
    if between_norms:
        delta = ops.rms_norm(delta.astype(np.float64), post.astype(np.float64), _EPS)
        np.testing.assert_allclose(total.get(), delta + residual, rtol=1e-5, atol=1e-6)
        both = total.get()
        normed = ops.rms_norm(both.astype(np.float64), other.astype(np.float64), _EPS)
        np.testing.assert_allclose(other_out.get(), normed, rtol=2e-6, atol=1e-7)
        np.testing.assert_array_equal(other_f16.get(), other_out.get().astype(np.float16))
    else:
        both = delta + residual
        np.testing.assert_array_equal(total.get(), both)
    normed = ops.rms_norm(both.astype(np.float64), weight.astype(np.float64), _EPS)
    np.testing.assert_allclose(out.get(), normed, rtol=2e-6, atol=1e-7)
    stored = quantise(out.get(), 1)
    np.testing.assert_array_equal(q.get(), stored.q.reshape(q.shape))
    if between_norms:
        normed = ops.rms_norm(both.astype(np.float64), routed.astype(np.float64), _EPS)
    exact = normed @ router.T.astype(np.float64)
    np.testing.assert_allclose(logits.get(), exact, atol=1e-5)
    if kind == "logits":
        return
    exact, of_shared = exact[:, :experts], exact[:, experts:]
    if biases[0] is not None:
        exact += biases[0]
    expected = ops.route(exact, biases[1], rule)
    own_choice = expected[0] - own[0]
    is_own = (own_choice >= 0) & (own_choice < own[1])
    own_choice = np.where(is_own, own_choice, ELSEWHERE)
    own_choice = np.hstack([own_choice, np.zeros((tokens, shared), int)])
    np.testing.assert_array_equal(chosen.get(), own_choice)
    of_all = 1 / (1 + np.exp(-of_shared)) if weighs else np.ones((tokens, shared))
    wanted = np.hstack([expected[1], of_all]) if shared else expected[1]
    np.testing.assert_allclose(weights.get(), wanted, rtol=2e-5)
    if shares is not None:
        np.testing.assert_allclose(shares.get(), of_all[:, 0], rtol=2e-5)
    assert not arrived.get().any(), "the counters are as they were"


@pytest.mark.parametrize("router", RouterFunction)
def test_a_norm_chooses_as_the_reference_does(device: Device, router: RouterFunction) -> None:
    rule = replace(RULE, router=router, num_groups=4, num_chosen_groups=2, scale=1.7)
    _check(device, rule, tokens=3, features=288, block=128, has_biases=True)


SHAPES = pytest.mark.parametrize(
    ("tokens", "experts", "features", "block"),
    [(1, 5, 32, 64), (6, 21, 1056, 128), (2, 70, 64, 128)],
    ids=["part_of_a_wave", "ragged_tiles", "more_experts_than_values"],
)


@pytest.mark.parametrize("kind", ["route", "logits"])
@SHAPES
def test_what_is_added_is_normed_and_others_read_norms_of_their_own(
    device: Device, kind: str, tokens: int, experts: int, features: int, block: int
) -> None:
    rule = replace(RULE, num_experts=experts)
    _check(device, rule, tokens, features, block, kind, between_norms=True)


@pytest.mark.parametrize("kind", ["route", "logits"])
@SHAPES
def test_any_shape_is_normed_and_routed(
    device: Device, kind: str, tokens: int, experts: int, features: int, block: int
) -> None:
    _check(device, replace(RULE, num_experts=experts), tokens, features, block, kind)


def test_experts_of_another_device_are_marked(device: Device) -> None:
    _check(device, RULE, tokens=5, features=64, block=64, own=(7, 9))


def test_each_token_goes_to_the_shared_expert(device: Device) -> None:
    _check(device, RULE, tokens=2, features=64, block=64, shared=1)
    _check(device, RULE, tokens=2, features=64, block=64, shared=1, weighed=0)


def test_a_network_beside_the_experts_has_a_share_of_its_own(device: Device) -> None:
    _check(device, RULE, tokens=2, features=64, block=64, has_share=True)
