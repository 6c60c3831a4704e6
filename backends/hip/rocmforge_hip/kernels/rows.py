"""Declarations of kernels on rows."""

from __future__ import annotations

from rocmforge_hip.device.arguments import F32, I32, I64, FloatForms, Forms, Pointer


def rf_embed(
    *, table: Pointer, tokens: Pointer, out: Pointer, vocab_size: I32, quant_blocks: I32, scale: F32
) -> None:
    """Takes rows of a table of weights, times scale."""


def rf_take_rows(*, x: Pointer, rows: Pointer, out: Pointer, hidden_size: I32) -> None:
    """Takes rows by their numbers."""


def rf_sum_rows(*, x: Pointer, ranges: Pointer, out: Pointer, hidden_size: I32) -> None:
    """Adds up the rows of ranges."""


def rf_rms_norm(
    *, x: Pointer, weight: Pointer, out: Forms, stride: I64, hidden_size: I32, eps: F32
) -> None:
    """Norms rows by their root mean square, in those forms that are not null."""


def rf_add_rms_norm(
    *,
    delta: Pointer,
    residual: Pointer,
    post_weight: Pointer | None,
    scale: Pointer | None,
    weight: Pointer,
    out: Forms,
    hidden_size: I32,
    eps: F32,
) -> None:
    """Adds delta, or its norm, to the residual, scales the sum if need be, and norms it."""


def rf_add_splits_rms_norm(
    *,
    partial: Pointer,
    bias: Pointer | None,
    residual: Pointer,
    post_weight: Pointer | None,
    scale: Pointer | None,
    weight: Pointer,
    out: Forms,
    splits: I32,
    hidden_size: I32,
    eps: F32,
) -> None:
    """Does the same, where delta is the sum of what the splits of a GEMM left, and a bias."""


def rf_give_rows(*, x: Pointer, out: Forms, hidden_size: I32) -> None:
    """Gives rows as they are, in the forms of `rf_rms_norm`."""


def rf_add_rows(
    *,
    delta: Pointer,
    residual: Pointer,
    post_weight: Pointer | None,
    out: Forms,
    hidden_size: I32,
    eps: F32,
) -> None:
    """Adds delta, or its norm, to the residual, and gives the sum as `rf_give_rows`."""


def rf_rms_norm_columns(
    *,
    x: Pointer,
    weight: Pointer,
    stride: I64,
    hidden_size: I32,
    other: Pointer | None,
    other_weight: Pointer | None,
    other_stride: I64,
    other_size: I32,
    eps: F32,
) -> None:
    """Norms columns of rows of float32, in place, and others beside them."""


def rf_gate_per_layer(
    *,
    gate: Pointer,
    rows: Pointer,
    projected: Pointer,
    out: Forms,
    stride: I64,
    features: I32,
    scale: F32,
) -> None:
    """Multiplies GELU(gate) with scale * (rows + projected)."""


def rf_softcap(*, x: Pointer, cap: F32, count: I64) -> None:
    """Makes x cap * tanh(x / cap), in place."""


def rf_quantize_act(
    *, x: Pointer, q: Pointer, scale: Pointer, q_lo_offset: I32, count: I64
) -> None:
    """Rounds to the int8 form of kernels/include/rf/activations/act.h."""


def rf_half_act(*, x: Pointer, out: Pointer, count: I64) -> None:
    """Rounds to halves."""


def rf_begin_step(
    *,
    host: Pointer | None,
    inputs: Pointer | None,
    words: I32,
    token_ids: Pointer,
    source: Pointer,
    previous_tokens: Pointer,
    tokens: Pointer,
    count: I32,
) -> None:
    """Brings the inputs of a step, and fills in the tokens that the step before sampled."""


def rf_embed_add(
    *,
    table: Pointer | None,
    positions: Pointer | None,
    type: Pointer | None,
    x: Pointer,
    table_rows: I32,
    quant_blocks: I32,
) -> None:
    """Adds rows of positions, and the one of the type, to embedded tokens."""


def rf_embed_between(
    *,
    table: Pointer,
    rows: Pointer,
    shares: Pointer,
    out: Pointer,
    table_rows: I32,
    quant_blocks: I32,
) -> None:
    """Adds up four rows of a table for each token, each times its share."""


def rf_layer_norm(
    *,
    x: Pointer,
    weight: Pointer,
    bias: Pointer | None,
    out: FloatForms,
    hidden_size: I32,
    eps: F32,
) -> None:
    """Norms rows by mean and variance."""


def rf_add_layer_norm(
    *,
    delta: Pointer,
    residual: Pointer,
    weight: Pointer,
    bias: Pointer | None,
    out_sum: Pointer | None,
    out: FloatForms,
    hidden_size: I32,
    eps: F32,
) -> None:
    """Adds delta to the residual, and norms the sum."""


def rf_rms_norm_half(
    *, x: Pointer, weight: Pointer, stride: I64, hidden_size: I32, eps: F32
) -> None:
    """Norms rows of halves, in place."""


def rf_layer_norm_half(
    *, x: Pointer, weight: Pointer, bias: Pointer | None, stride: I64, hidden_size: I32, eps: F32
) -> None:
    """Norms rows of halves, in place."""


def rf_store_hidden(*, x: Pointer, slots: Pointer, hidden: Pointer, hidden_size: I32) -> None:
    """Keeps rows as halves, by their slots."""


def rf_beside_hidden(
    *,
    x: Pointer,
    hidden: Pointer,
    before: Pointer,
    x_norm: Pointer,
    hidden_norm: Pointer,
    out: Forms,
    hidden_size: I32,
    eps: F32,
) -> None:
    """Norms rows, and behind each a row that was kept, in those forms that are not null."""


def rf_sigmoid_gate(*, gate: Pointer, x: Forms, stride: I64, features: I32) -> None:
    """Makes x x * sigmoid(gate), in place."""


def rf_squared_relu(*, x: Forms, count: I64) -> None:
    """Makes x max(x, 0)^2, in place."""


def rf_clamp_half(*, x: Pointer, out: Pointer, bounds: Pointer, count: I64) -> None:
    """Takes halves within bounds."""


def rf_clamp_float(*, x: Pointer, bounds: Pointer, count: I64) -> None:
    """Brings x within bounds, in place."""


def rf_gate_clamped_half(
    *,
    gate: Pointer,
    up: Pointer,
    gate_bounds: Pointer,
    up_bounds: Pointer,
    count: I64,
    activation: I32,
) -> None:
    """Makes gate activation(gate) * up, each within bounds, in place."""


def rf_gelu(*, x: Pointer, count: I64) -> None:
    """Makes x gelu(x), in place."""
