"""Declarations of kernels that encoders alone need."""

from __future__ import annotations

from rocmforge_hip.device.arguments import F32, I32, I64, FloatForms, Pointer


def rf_embed_add(
    *,
    table: Pointer | None,
    positions: Pointer,
    type: Pointer | None,
    x: Pointer,
    table_rows: I32,
    quant_blocks: I32,
) -> None:
    """Adds rows of positions, and the one of the type, to embedded tokens."""


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


def rf_layer_norm_half(
    *,
    x: Pointer,
    weight: Pointer,
    bias: Pointer | None,
    stride: I64,
    hidden_size: I32,
    eps: F32,
) -> None:
    """Norms rows of halves, in place."""


def rf_gelu_half(
    *,
    x: Pointer,
    count: I64,
) -> None:
    """Makes x gelu(x), in place."""


def rf_rope_half(
    *,
    q: Pointer,
    k: Pointer,
    cosine: Pointer,
    sine: Pointer,
    positions: Pointer,
    q_stride: I64,
    k_stride: I64,
    heads: I32,
    head_dim: I32,
    rotary_dim: I32,
) -> None:
    """Rotates queries and keys, in place."""


def rf_attention_full(
    *,
    q: Pointer,
    k: Pointer,
    v: Pointer,
    query_start: Pointer,
    out: Pointer,
    q_stride: I64,
    k_stride: I64,
    v_stride: I64,
    scale: F32,
    reach: I32 | None = None,
    slopes: Pointer | None = None,
) -> None:
    """Attends to all tokens of a sequence; `near` to those within reach, or with slopes."""
