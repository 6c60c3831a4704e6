"""Declarations of kernels that multiply with weights, and of the one that stores those."""

from __future__ import annotations

from rocmforge_hip.device.arguments import F32, I32, I64, Factor, Forms, Pointer


def rf_repack(
    *,
    blocks: Pointer,
    weight: Pointer,
    rows: I32,
    quant_blocks: I32,
    stored_rows: I32,
    first_row: I32,
    matrix_rows: I32,
    placing: I32,
) -> None:
    """Places rows of a file's tensor in matrices of kernels/include/rf/weights/weights.h."""


def rf_gemv(
    *,
    weight: Pointer,
    q: Pointer,
    scale: Pointer,
    bias: Pointer | None,
    out: Pointer,
    rows: I32,
    slices: I32,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
) -> None:
    """Multiplies a few int8 rows with a quantised matrix."""


def rf_gemv_mixed(
    *,
    first: Factor,
    second: Factor,
    third: Factor,
    q: Pointer,
    scale: Pointer,
    rows: I32,
    slices: I32,
    quant_blocks: I32,
) -> None:
    """Does what `rf_gemv` does with up to three matrices, whose formats may differ."""


def rf_gemv_deferred_mixed(
    *,
    first: Factor,
    second: Factor,
    third: Factor,
    q: Pointer,
    scale: Pointer,
    quant_blocks: I32,
    squares: Pointer,
    eps: F32,
) -> None:
    """Does what `rf_gemv_mixed` does with a row whose norm it completes."""


def rf_gemv_norm(
    *,
    weight: Pointer,
    q: Pointer,
    scale: Pointer,
    bias: Pointer | None,
    out: Pointer,
    rows: I32,
    slices: I32,
    out_features: I32,
    quant_blocks: I32,
    format: I32,
    arrived: Pointer,
    residual: Pointer,
    post_weight: Pointer | None,
    scale_of_sum: Pointer | None,
    norm_weight: Pointer | None,
    normed: Forms,
    squares: Pointer,
    eps: F32,
) -> None:
    """Does what `rf_gemv` does, and then what `rf_add_rms_norm` does with the product."""


def rf_gemv_per_layer(
    *,
    weight: Pointer,
    q: Pointer,
    scale: Pointer,
    rows: I32,
    slices: I32,
    out_features: I32,
    quant_blocks: I32,
    format: I32,
    embedded: Pointer,
    projected: Pointer,
    stride: I64,
    factor: F32,
    out: Forms,
) -> None:
    """Multiplies int8 rows, and gates a token's other embedding with that: `rf_gate_per_layer`."""


def rf_gemv_gated(
    *,
    weight: Pointer,
    q: Pointer,
    scale: Pointer,
    out: Forms,
    rows: I32,
    slices: I32,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
    format: I32,
) -> None:
    """Does what `rf_gemv` does with gate and up, and rounds the result to int8."""


def rf_gemv_deferred_gated(
    *,
    weight: Pointer,
    q: Pointer,
    scale: Pointer,
    out: Forms,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
    format: I32,
    squares: Pointer,
    eps: F32,
) -> None:
    """Does what `rf_gemv_gated` does with a row whose norm it completes."""


def rf_gemv_deferred(
    *,
    weight: Pointer,
    q: Pointer,
    scale: Pointer,
    bias: Pointer | None,
    out_features: I32,
    quant_blocks: I32,
    format: I32,
    residual: Pointer,
    norm_weight: Pointer,
    normed_q: Pointer,
    normed_q_scale: Pointer,
    squares: Pointer,
) -> None:
    """Adds to the residual what `rf_gemv` makes; what reads the norm of the sum completes it."""


def rf_gemv_deferred_route(
    *,
    weight: Pointer,
    q: Pointer,
    scale: Pointer,
    bias: Pointer | None,
    out_features: I32,
    quant_blocks: I32,
    format: I32,
    residual: Pointer,
    norm_weight: Pointer,
    normed_q: Pointer,
    normed_q_scale: Pointer,
    squares: Pointer,
    router: Pointer,
    logit_sums: Pointer,
    logits: I32,
) -> None:
    """Does that, and adds to the sums of logits what a router makes of the norm."""


def rf_gemv_deferred_first(
    *,
    first: Factor,
    second: Factor,
    q: Pointer,
    scale: Pointer,
    quant_blocks: I32,
    completed: Pointer | None,
    completed_eps: F32,
    normed_columns: I32,
    norm_weight: Pointer,
    normed_q: Pointer,
    normed_q_scale: Pointer,
    squares: Pointer,
) -> None:
    """Multiplies with two matrices; what reads the norm of the first columns completes it."""


def rf_gemm_int8(
    *,
    weight: Pointer,
    q: Pointer,
    scale: Pointer,
    bias: Pointer | None,
    out: Pointer | None,
    out_half: Pointer | None,
    rows: I32,
    slices: I32,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
    squares: Pointer | None,
    eps: F32,
) -> None:
    """Does what `rf_gemv` does, for up to 16 rows, on int8 matrix instructions.

    With `squares`, it completes the norms of its rows.
    """


def rf_gemm_int8_deferred(
    *,
    weight: Pointer,
    q: Pointer,
    scale: Pointer,
    bias: Pointer | None,
    rows: I32,
    out_features: I32,
    quant_blocks: I32,
    residual: Pointer,
    norm_weight: Pointer,
    normed_q: Pointer,
    normed_q_scale: Pointer,
    squares: Pointer,
) -> None:
    """Adds to the residual what `rf_gemm_int8` makes; what reads the norms completes them."""


def rf_gemv_float(
    *,
    weight: Pointer,
    x: Pointer,
    bias: Pointer | None,
    out: Pointer,
    rows: I32,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
) -> None:
    """Multiplies a few float32 rows with a matrix of floats: `rf_gemv` of those formats."""


def rf_gemv_norm_float(
    *,
    weight: Pointer,
    x: Pointer,
    bias: Pointer | None,
    out: Pointer,
    rows: I32,
    out_features: I32,
    quant_blocks: I32,
    arrived: Pointer,
    residual: Pointer,
    post_weight: Pointer | None,
    scale_of_sum: Pointer | None,
    norm_weight: Pointer | None,
    normed: Forms,
    squares: Pointer,
    eps: F32,
) -> None:
    """Does what `rf_gemv_float` does, and then what `rf_add_rms_norm` does with the product."""


def rf_gemm(
    *,
    weight: Pointer,
    places: Pointer | None,
    x: Pointer,
    tiles: Pointer | None,
    sources: Pointer | None,
    bias: Pointer | None,
    up_bias: Pointer | None,
    out: Pointer | None,
    out_half: Pointer | None,
    partial: Pointer | None,
    expert_bytes: I64,
    rows: I32,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
    split_quant_blocks: I32,
) -> None:
    """Multiplies rows of halves with a matrix, or groups of rows; partial: K is split."""


def rf_experts_gemm(
    *,
    weight: Pointer,
    places: Pointer | None,
    x: Pointer,
    tiles: Pointer,
    sources: Pointer | None,
    bias: Pointer | None,
    out: Pointer,
    expert_bytes: I64,
    out_features: I32,
    quant_blocks: I32,
    multiprocessors: I32,
) -> None:
    """Does what `rf_gemm` does with groups of short rows, which stay in LDS."""


def rf_experts_gated_gemm(
    *,
    weight: Pointer,
    places: Pointer | None,
    x: Pointer,
    tiles: Pointer,
    sources: Pointer | None,
    bias: Pointer | None,
    up_bias: Pointer | None,
    out_half: Pointer,
    expert_bytes: I64,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
    multiprocessors: I32,
) -> None:
    """Does what `rf_gemm` does with groups of rows and a gated layer; rows stay in LDS."""


def rf_gemm_ungrouped(
    *,
    weight: Pointer,
    x: Pointer,
    bias: Pointer | None,
    up_bias: Pointer | None,
    out: Pointer | None,
    out_half: Pointer | None,
    partial: Pointer | None,
    rows: I32,
    out_features: I32,
    quant_blocks: I32,
    activation: I32,
    split_quant_blocks: I32,
) -> None:
    """Does what `rf_gemm` does, without groups, for few rows or in tiles of very many."""


def rf_gemm_beside(
    *,
    weight: Pointer,
    second_weight: Pointer,
    x: Pointer,
    partial: Pointer,
    rows: I32,
    first_features: I32,
    second_features: I32,
    quant_blocks: I32,
    split_quant_blocks: I32,
) -> None:
    """Does what `rf_gemm` does for few rows and two matrices, whose K is split."""


def rf_gemm_sum(
    *,
    partial: Pointer,
    bias: Pointer | None,
    out: Pointer | None,
    out_half: Pointer | None,
    second_bias: Pointer | None,
    second_out: Pointer | None,
    second_out_half: Pointer | None,
    splits: I32,
    out_features: I32,
    second_features: I32,
    activation: I32,
) -> None:
    """Adds up what a split GEMM left, of one matrix or two."""


def rf_lora_shrink(
    *,
    x: Pointer,
    a: Pointer,
    tiles: Pointer,
    order: Pointer,
    adapters: Pointer,
    shrunk: Pointer,
    in_features: I32,
    split_features: I32,
    parts: I32,
    ranks: I32,
) -> None:
    """Multiplies rows with A of their adapters."""


def rf_lora_expand(
    *,
    shrunk: Pointer,
    b: Pointer,
    tiles: Pointer,
    order: Pointer,
    adapters: Pointer,
    factors: Pointer,
    outputs: Pointer,
    y: Pointer,
    splits: I32,
    ranks: I32,
    out_features: I32,
) -> None:
    """Adds to y what B of the adapters makes of shrunk rows."""
