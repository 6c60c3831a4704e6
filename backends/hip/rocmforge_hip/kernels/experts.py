"""Declarations of kernels for experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rocmforge_hip.device.arguments import F32, I32, I64, Forms, Pointer, record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertChoice:
    """How experts are chosen by a router's logits, and where they are written to.

    `RouteRule` in kernels/include/rf/experts/route.h says what each means.
    """

    bias: Pointer | None  # float32 [experts], as the next two
    selection_bias: Pointer | None
    weight_scale: Pointer | None
    chosen: Pointer  # int32 [tokens, num_chosen + num_shared]
    weights: Pointer  # float32, alike
    shares: Pointer | None  # float32 [tokens], of a network beside the experts
    experts: I32
    num_chosen: I32
    function: I32
    groups: I32
    kept_groups: I32
    normalised: I32
    factor: F32  # of all weights
    first_own: I32
    num_own: I32
    num_shared: I32
    weighs_shared: I32


Choice = Annotated[ExpertChoice, record_of(ExpertChoice)]


def rf_route_logits(
    *, x: Pointer, router: Pointer, logits: Pointer, tokens: I32, experts: I32, features: I32
) -> None:
    """Multiplies tokens with a router, in float32."""


def rf_route_gemm(
    *, x: Pointer, router: Pointer, logits: Pointer, tokens: I32, experts: I32, features: I32
) -> None:
    """Multiplies many tokens with a router, as exactly as in float32."""


def rf_route_choose(*, logits: Pointer, choice: Choice, splits: I32) -> None:
    """Chooses the experts of each token and weights them."""


def rf_add_rms_norm_logits(
    *,
    delta: Pointer,
    residual: Pointer,
    post_weight: Pointer | None,
    weight: Pointer,
    other_weight: Pointer | None,
    router_weight: Pointer,
    router: Pointer,
    total: Pointer,
    logits: Pointer,
    out: Forms,
    other: Forms,
    tokens: I32,
    experts: I32,
    hidden_size: I32,
    eps: F32,
) -> None:
    """Adds delta, or its norm, to the residual, norms the sum, and multiplies with a router."""


def rf_add_rms_norm_route(
    *,
    delta: Pointer,
    residual: Pointer,
    post_weight: Pointer | None,
    weight: Pointer,
    other_weight: Pointer | None,
    router_weight: Pointer,
    router: Pointer,
    total: Pointer,
    logits: Pointer,
    out: Forms,
    other: Forms,
    tokens: I32,
    hidden_size: I32,
    eps: F32,
    arrived: Pointer,
    choice: Choice,
) -> None:
    """Does that and chooses the experts of each token: `rf_route_choose` with it."""


def rf_add_shared(
    *, mixed: Pointer, shared: Pointer, shares: Pointer | None, features: I32
) -> None:
    """Adds the shared expert's result, weighted if it has a router, to that of the others."""


def rf_add_shared_rms_norm(
    *,
    mixed: Pointer,
    mixed_weight: Pointer | None,
    shared: Pointer,
    shared_weight: Pointer | None,
    shares: Pointer | None,
    residual: Pointer,
    post_weight: Pointer | None,
    scale: Pointer | None,
    weight: Pointer,
    out: Forms,
    hidden_size: I32,
    eps: F32,
) -> None:
    """Adds the same, or norms of it, to the residual, and norms the sum: `rf_add_rms_norm`."""


def rf_experts_gate_up(
    *,
    weight: Pointer,
    places: Pointer | None,
    q: Pointer,
    scale: Pointer,
    chosen: Pointer,
    gate_bias: Pointer | None,
    up_bias: Pointer | None,
    out: Forms,
    expert_bytes: I64,
    rows: I32,
    num_chosen: I32,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
) -> None:
    """Multiplies int8 rows with gate and up of the experts of each."""


def rf_experts_gate_up_float(
    *,
    weight: Pointer,
    places: Pointer | None,
    x: Pointer,
    chosen: Pointer,
    gate_bias: Pointer | None,
    up_bias: Pointer | None,
    out: Forms,
    expert_bytes: I64,
    rows: I32,
    num_chosen: I32,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
) -> None:
    """Multiplies float32 rows with them: `rf_experts_gate_up` of formats of floats."""


def rf_experts_down(
    *,
    weight: Pointer,
    places: Pointer | None,
    q: Pointer,
    scale: Pointer,
    chosen: Pointer,
    weights: Pointer,
    bias: Pointer | None,
    out: Pointer,
    expert_bytes: I64,
    rows: I32,
    num_chosen: I32,
    out_features: I32,
    quant_blocks: I32,
) -> None:
    """Multiplies int8 rows of pairs with down of their experts, and adds up those of a token."""


def rf_experts_down_shared(
    *,
    weight: Pointer,
    places: Pointer | None,
    q: Pointer,
    scale: Pointer,
    chosen: Pointer,
    bias: Pointer | None,
    out: Pointer,
    expert_bytes: I64,
    pairs: I32,
    out_features: I32,
    quant_blocks: I32,
) -> None:
    """Multiplies int8 rows of pairs with down of their experts, a result for each pair."""


def rf_experts_down_float(
    *,
    weight: Pointer,
    places: Pointer | None,
    x: Pointer,
    chosen: Pointer,
    weights: Pointer,
    bias: Pointer | None,
    out: Pointer,
    expert_bytes: I64,
    rows: I32,
    num_chosen: I32,
    out_features: I32,
    quant_blocks: I32,
) -> None:
    """Does that with float32 rows: `rf_experts_down` of formats of floats."""


def rf_clear_logits(*, sums: Pointer, count: I32) -> None:
    """Makes zeros of sums of logits."""


def rf_experts_choose_gate_up(
    *,
    weight: Pointer,
    places: Pointer | None,
    q: Pointer,
    scale: Pointer,
    gate_bias: Pointer | None,
    up_bias: Pointer | None,
    out: Forms,
    expert_bytes: I64,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
    squares: Pointer,
    eps: F32,
    logit_sums: Pointer,
    choice: Choice,
) -> None:
    """Does what `rf_route_choose` and `rf_experts_gate_up` do, and completes a row's norm."""


def rf_experts_add_down(
    *,
    weight: Pointer,
    places: Pointer | None,
    q: Pointer,
    scale: Pointer,
    chosen: Pointer,
    weights: Pointer,
    bias: Pointer | None,
    expert_bytes: I64,
    num_chosen: I32,
    out_features: I32,
    quant_blocks: I32,
    residual: Pointer,
    norm_weight: Pointer,
    normed_q: Pointer,
    normed_q_scale: Pointer,
    squares: Pointer,
    logit_sums: Pointer,
    logits: I32,
) -> None:
    """Adds to the residual what `rf_experts_down` makes, as `rf_gemv_deferred` does.

    Makes zeros of the sums of logits that chose the experts.
    """


def rf_experts_gate_up_beside(
    *,
    weight: Pointer,
    places: Pointer | None,
    q: Pointer,
    scale: Pointer,
    chosen: Pointer,
    out: Forms,
    expert_bytes: I64,
    num_chosen: I32,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
    format: I32,
    beside_weight: Pointer,
    beside_q: Pointer,
    beside_scale: Pointer,
    beside_out: Forms,
    beside_features: I32,
    beside_format: I32,
    beside_threads: I32,
) -> None:
    """Does what `rf_experts_gate_up` does with a row, and `rf_gemv_gated` with another one."""


def rf_experts_choose_gate_up_beside(
    *,
    weight: Pointer,
    places: Pointer | None,
    q: Pointer,
    scale: Pointer,
    out: Forms,
    expert_bytes: I64,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
    format: I32,
    beside_weight: Pointer,
    beside_out: Forms,
    beside_features: I32,
    beside_format: I32,
    beside_threads: I32,
    squares: Pointer,
    eps: F32,
    logit_sums: Pointer,
    choice: Choice,
) -> None:
    """Does what `rf_experts_gate_up_beside` does with one row, whose norm it completes.

    It chooses the experts, as `rf_experts_choose_gate_up` does.
    """


def rf_experts_down_beside(
    *,
    weight: Pointer,
    places: Pointer | None,
    q: Pointer,
    scale: Pointer,
    chosen: Pointer,
    weights: Pointer,
    out: Pointer,
    expert_bytes: I64,
    num_chosen: I32,
    out_features: I32,
    quant_blocks: I32,
    format: I32,
    beside_weight: Pointer,
    beside_q: Pointer,
    beside_scale: Pointer,
    beside_out: Pointer,
    beside_quant_blocks: I32,
    beside_format: I32,
    beside_threads: I32,
    logit_sums: Pointer | None,
    logits: I32,
    arrived: Pointer | None,
    mixed_weight: Pointer | None,
    shared_weight: Pointer | None,
    shares: Pointer | None,
    residual: Pointer | None,
    post_weight: Pointer | None,
    scale_of_sum: Pointer | None,
    norm_weight: Pointer | None,
    normed: Forms,
    eps: F32,
) -> None:
    """Does what `rf_experts_down` and `rf_gemv` do, and may do `rf_add_shared_rms_norm`, too."""
